"""Each sample about Kubernetes concludes what its row of INDEX.md says."""

from __future__ import annotations


def find(findings, name, subject=None):
    return [f for f in findings if f.id == name and subject in (None, f.subject)]


def one(findings, name, subject=None):
    (found,) = find(findings, name, subject)
    return found


def test_a_local_class_by_lvm_is_not_for_gpudirect_although_it_is_local(explained, said):
    found = explained("k8s/local-nvme-topolvm.yaml")
    assert said(found) == {("k8s-class-device-mapper", "warn"), ("k8s-access-modes", "info")}
    lvm = one(found, "k8s-class-device-mapper", "StorageClass local-nvme")
    assert "no GPUDirect, although the disk is a local NVMe" in lvm.what
    assert "local-static-provisioner" in lvm.fix
    assert one(found, "k8s-access-modes").what == "ReadWriteOnce: for one node"


def test_rdma_that_is_asked_for_must_be_confirmed_by_the_mount(explained, said):
    found = explained("k8s/nfs-rdma-rwx.yaml")
    assert said(found) == {("k8s-nfs-mount-options", "info"), ("k8s-access-modes", "info")}
    assert "only proto=rdma in the mountinfo of the pod or node confirms" in one(found, "k8s-nfs-mount-options").what
    assert {f.what for f in find(found, "k8s-access-modes")} == {"ReadWriteMany: for many nodes"}


def test_a_bucket_by_fuse_is_never_direct_and_its_cache_may_be_on_the_root_disk(explained, said):
    found = explained("k8s/mountpoint-s3.yaml")
    assert {("k8s-fuse-volume", "warn"), ("k8s-emptydir-on-disk", "warn")} <= said(found)
    assert one(found, "k8s-fuse-volume").what == "FUSE: never GPUDirect; its capacity of 1200Gi is ignored"
    assert "check that the kubelet's disk is NVMe" in one(found, "k8s-emptydir-on-disk").what


def test_a_job_has_udev_shared_memory_and_volumes_but_no_nvidia_fs(explained, said):
    found = explained("k8s/jobset-training.yaml")
    assert said(found) == {
        ("k8s-run-udev", "ok"),
        ("k8s-shared-memory", "ok"),
        ("k8s-access-modes", "info"),
        ("k8s-nvidia-fs-nodes", "warn"),
    }
    assert "up to 64Gi" in one(found, "k8s-shared-memory").what
    shared, own = find(found, "k8s-access-modes", "JobSet train")
    assert shared.what == "claim 'ds' is shared by 4 pods: it must be ReadWriteMany or ReadOnlyMany"
    assert own.what == "volume 'cache' is made for each pod (ReadWriteOnce): a cache of its own"
    assert "GPUDirect by nvidia-fs is not available" in one(found, "k8s-nvidia-fs-nodes").what
