"""Flags for registries, snapshots of etcd, hardening and delivery by Fleet."""

from __future__ import annotations

from packager.definitions.flags import values
from packager.definitions.flags.model import Flag

FLAGS = (
    Flag(
        "--image-registry",
        ("spec", "addons", "imageRegistry"),
        "Registry with the images of add-ons, RKE2 and K3s, host[:port][/path].",
    ),
    Flag(
        "--registry-mirror",
        ("spec", "registries", "mirrors"),
        "Mirrors of registries for RKE2 and K3s, REGISTRY=URL, comma-separated.",
        value=values.mirrors,
    ),
    Flag(
        "--etcd-snapshot-schedule",
        ("spec", "etcdSnapshots", "schedule"),
        "When RKE2 or K3s takes snapshots of etcd, in the form of cron.  [default: every 12 hours]",
    ),
    Flag(
        "--etcd-snapshot-retention",
        ("spec", "etcdSnapshots", "retention"),
        "Snapshots of etcd to keep on each machine.  [default: 5]",
        value=values.number,
    ),
    Flag(
        "--etcd-s3-endpoint",
        ("spec", "etcdSnapshots", "s3", "endpoint"),
        "S3 service for snapshots of etcd, host[:port].",
    ),
    Flag(
        "--etcd-s3-bucket",
        ("spec", "etcdSnapshots", "s3", "bucket"),
        "Bucket for snapshots of etcd.",
    ),
    Flag(
        "--etcd-s3-folder",
        ("spec", "etcdSnapshots", "s3", "folder"),
        "Folder in the bucket for this cluster alone, of all management clusters.",
    ),
    Flag(
        "--etcd-s3-retention",
        ("spec", "etcdSnapshots", "s3", "retention"),
        "Snapshots of etcd to keep in the S3 store, of all machines together.",
        value=values.number,
    ),
    Flag(
        "--etcd-s3-region",
        ("spec", "etcdSnapshots", "s3", "region"),
        "Region of the S3 service.",
    ),
    Flag(
        "--etcd-s3-secret",
        ("spec", "etcdSnapshots", "s3", "credentialsSecretName"),
        "Secret in the namespace with aws_access_key_id and aws_secret_access_key.",
    ),
    Flag(
        "--etcd-s3-ca-secret",
        ("spec", "etcdSnapshots", "s3", "caSecretName"),
        "Secret in the namespace with the CA of the S3 service, ca.pem.",
    ),
    Flag(
        "--cis-profile",
        ("spec", "hardening", "cisProfile"),
        "CIS profile of RKE2.",
        choices=("cis", "cis-1.23"),
    ),
    Flag(
        "--fleet-addon-repo",
        ("spec", "fleet", "repo"),
        "Repository with the cluster's bundles, for add-ons by Fleet.  [default: add-ons by "
        "ClusterResourceSets]",
    ),
    Flag(
        "--fleet-addon-branch",
        ("spec", "fleet", "branch"),
        "Branch of that repository.  [default: main]",
    ),
)
