"""Flags for registries, snapshots of etcd, hardening and delivery by Fleet."""

from __future__ import annotations

from packager.definitions.flags import values
from packager.definitions.flags.model import Flag

FLAGS = (
    Flag(
        "--image-registry",
        ("spec", "addons", "imageRegistry"),
        "HOST[:PORT][/PATH]",
        "Registry with the images of add-ons, RKE2 and K3s.",
    ),
    Flag(
        "--registry-mirror",
        ("spec", "registries", "mirrors"),
        "REGISTRY=URL,...",
        "Mirrors of registries for RKE2 and K3s, comma-separated.",
        value=values.mirrors,
    ),
    Flag(
        "--etcd-snapshot-schedule",
        ("spec", "etcdSnapshots", "schedule"),
        "CRON",
        "Cron schedule of etcd snapshots by RKE2 or K3s.  [default: every 12 hours]",
    ),
    Flag(
        "--etcd-snapshot-retention",
        ("spec", "etcdSnapshots", "retention"),
        "NUMBER",
        "Number of etcd snapshots to keep on each machine.  [default: 5]",
        value=values.number,
    ),
    Flag(
        "--etcd-s3-endpoint",
        ("spec", "etcdSnapshots", "s3", "endpoint"),
        "HOST[:PORT]",
        "S3 service for etcd snapshots.",
    ),
    Flag(
        "--etcd-s3-bucket",
        ("spec", "etcdSnapshots", "s3", "bucket"),
        "NAME",
        "Bucket for etcd snapshots.",
    ),
    Flag(
        "--etcd-s3-folder",
        ("spec", "etcdSnapshots", "s3", "folder"),
        "PATH",
        "Folder in the bucket that no other cluster uses, on any management cluster.",
    ),
    Flag(
        "--etcd-s3-retention",
        ("spec", "etcdSnapshots", "s3", "retention"),
        "NUMBER",
        "Number of etcd snapshots of all machines together to keep in the S3 store.",
        value=values.number,
    ),
    Flag(
        "--etcd-s3-region",
        ("spec", "etcdSnapshots", "s3", "region"),
        "REGION",
        "Region of the S3 service.",
    ),
    Flag(
        "--etcd-s3-secret",
        ("spec", "etcdSnapshots", "s3", "credentialsSecretName"),
        "NAME",
        "Secret in the cluster's namespace with aws_access_key_id and aws_secret_access_key.",
    ),
    Flag(
        "--etcd-s3-ca-secret",
        ("spec", "etcdSnapshots", "s3", "caSecretName"),
        "NAME",
        "Secret in the cluster's namespace with the CA certificate of the S3 service, ca.pem.",
    ),
    Flag(
        "--cis-profile",
        ("spec", "hardening", "cisProfile"),
        "[cis|cis-1.23]",
        "CIS profile of RKE2.",
        choices=("cis", "cis-1.23"),
    ),
    Flag(
        "--fleet-addon-repo",
        ("spec", "fleet", "repo"),
        "URL",
        "Git repository with the cluster's bundles, for add-ons by Fleet.  [default: add-ons "
        "by ClusterResourceSets]",
    ),
    Flag(
        "--fleet-addon-branch",
        ("spec", "fleet", "branch"),
        "BRANCH",
        "Branch of --fleet-addon-repo.  [default: main]",
    ),
)
