"""Kubernetes objects in forms that no sample has, and a pod from inside."""

from __future__ import annotations

import json

import pytest

from stoker.doctor import kubernetes
from stoker.doctor.check import Target
from stoker.doctor.kubernetes import check_pod
from stoker.doctor.kubernetes_pod import size_bytes

POD = {"KUBERNETES_SERVICE_HOST": "192.0.2.1"}
DIR = "pods/8f/volumes/kubernetes.io~empty-dir/scratch"


def explain(kind, **body):
    text = json.dumps({"apiVersion": "v1", "kind": kind, "metadata": {"name": "x"}, **body})
    assert kubernetes.detect(text)
    return kubernetes.explain(text, "given")


def pod(volumes=(), mounts=(), memory=None, **container):
    limits = {"nvidia.com/gpu": 8} | ({"memory": memory} if memory else {})
    one = {"resources": {"limits": limits}, "volumeMounts": [{"name": n, "mountPath": p} for n, p in mounts]}
    return explain("Pod", spec={"containers": [one | container], "volumes": list(volumes)})


@pytest.mark.parametrize(
    ("provisioner", "expected"),
    [
        ("local.csi.openebs.io", ("k8s-class-device-mapper", "warn")),
        ("zfs.csi.openebs.io", ("k8s-class-device-mapper", "warn")),
        ("kubernetes.io/no-provisioner", ("k8s-class-local", "info")),
        ("nfs.csi.k8s.io", ("k8s-nfs-mount-options", "warn")),
        ("csi.weka.io", ("k8s-class-unknown", "info")),
        ("ebs.csi.aws.com", ("k8s-class-unknown", "info")),
        ("block.example.com", ("k8s-class-unknown", "unknown")),
    ],
)
def test_a_class_is_told_by_its_provisioner(provisioner, expected, said):
    found = explain("StorageClass", provisioner=provisioner, volumeBindingMode="WaitForFirstConsumer")
    assert said(found) == {expected}


def test_local_volumes_wait_for_their_pod(said):
    found = explain("StorageClass", provisioner="kubernetes.io/no-provisioner")
    assert ("k8s-binding-immediate", "warn") in said(found)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"local": {"path": "/mnt/disks/a"}}, {("k8s-class-local", "info")}),
        ({"nfs": {"server": "a"}, "mountOptions": ["nconnect=8"]}, {("k8s-nfs-mount-options", "warn")}),
        ({"csi": {"driver": "disk.example.com"}}, {("k8s-class-unknown", "unknown")}),
        ({"csi": {"driver": "fsx.csi.aws.com"}}, set()),
        ({"csi": {"driver": "gcsfuse.csi.storage.gke.io"}}, {("k8s-fuse-volume", "warn"), ("k8s-fuse-volume", "info")}),
        ({"accessModes": ["ReadWriteSometimes"]}, {("line-not-understood", "unknown")}),
    ],
)
def test_a_volume_is_told_by_its_driver(spec, expected, said):
    assert said(explain("PersistentVolume", spec=spec)) == expected


def test_a_pod_with_gpus_and_nothing_else_lacks_all(said):
    assert said(pod()) == {("k8s-run-udev", "warn"), ("k8s-shared-memory", "warn"), ("k8s-nvidia-fs-nodes", "warn")}


def test_a_pod_without_gpus_needs_none_of_it():
    assert explain("Pod", spec={"containers": [{"name": "a"}]}) == []


def test_a_privileged_pod_has_the_device_nodes(said):
    found = pod(securityContext={"privileged": True})
    assert "k8s-nvidia-fs-nodes" not in {f.id for f in found}


@pytest.mark.parametrize(("memory", "severity"), [("96Gi", "warn"), ("512Gi", "ok"), (None, "ok")])
def test_shared_memory_counts_in_the_memory_limit(memory, severity):
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}}
    found = pod([shm], [("shm", "/dev/shm")], memory)
    assert [str(f.severity) for f in found if f.id == "k8s-shared-memory"] == [severity]


def test_a_cache_on_an_emptydir_is_on_the_kubelets_disk():
    found = pod([{"name": "cache", "emptyDir": {}}], [("cache", "/cache")])
    assert "k8s-emptydir-on-disk" in {f.id for f in found}


@pytest.mark.parametrize(
    ("mode", "severity"), [("ReadOnlyMany", "ok"), ("ReadWriteOnce", "warn"), ("ReadWriteOncePod", "warn")]
)
def test_a_claim_that_many_pods_share_must_allow_it(mode, severity):
    text = f"""apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: ds}}
spec: {{accessModes: [{mode}]}}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: train
spec:
  parallelism: 2
  template:
    spec:
      containers:
      - name: a
      volumes:
      - name: data
        persistentVolumeClaim:
          claimName: ds
"""
    (found,) = [f for f in kubernetes.explain(text, "given") if f.subject == "Job train"]
    assert (found.id, str(found.severity)) == ("k8s-access-modes", severity)
    assert "shared by 2 pods" in found.what


def test_lists_of_objects_are_read_and_strange_lines_quoted():
    item = {"apiVersion": "v1", "kind": "StorageClass", "provisioner": "topolvm.io"}
    found = explain("List", items=[item])
    assert "k8s-class-device-mapper" in {f.id for f in found}
    (found,) = kubernetes.explain("apiVersion: v1\nkind: Pod\nspec: *other\n", "given")
    assert (found.id, found.evidence[0].line) == ("line-not-understood", "*other")


@pytest.mark.parametrize(
    ("text", "size"), [("64Gi", 64 << 30), ("1.5T", 15 * 10**11), ("512", 512), ("lots", None), ("1e3", None)]
)
def test_quantities_are_bytes(text, size):
    assert size_bytes(text) == size


def test_outside_a_pod_nothing_is_said(make_node):
    assert check_pod(make_node(), Target()) == []


@pytest.mark.parametrize(("gpus", "severity"), [(True, "warn"), (False, "info")])
def test_a_pod_without_udev_is_told(make_node, gpus, severity):
    files = {"/proc/driver/nvidia/gpus/0000:1b:00.0/information": ""} if gpus else {}
    (found,) = check_pod(make_node(files=files, variables=POD), Target())
    assert (found.id, str(found.severity)) == ("k8s-run-udev", severity)


@pytest.mark.parametrize(
    ("root", "fs_type", "severity"),
    [("/var/lib/kubelet/", "ext4", "warn"), ("/", "xfs", "info"), ("/", "tmpfs", None)],
)
def test_where_an_emptydir_lies_its_mount_tells(make_node, root, fs_type, severity):
    mounts = f"1 0 259:0 {root}{DIR} /cache rw - {fs_type} /dev/nvme0n1p1 rw\n"
    files = {"/proc/self/mountinfo": mounts, "/run/udev/data/b259:0": ""}
    found = check_pod(make_node(files=files, variables=POD), Target())
    assert [(f.subject, str(f.severity)) for f in found] == ([("/cache", severity)] if severity else [])
