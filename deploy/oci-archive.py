#!/usr/bin/env python3
"""Packs image roots into one OCI archive, an image for each architecture under one index: no container engine is needed.

    deploy/oci-archive.py --out FILE --version VERSION --revision COMMIT ARCHITECTURE=FOLDER...

`skopeo copy --all oci-archive:FILE docker://...` publishes it; `docker load` and `ctr image import` take it too. The same folders give
the same bytes, with the same SOURCE_DATE_EPOCH.
"""

import argparse
import datetime
import gzip
import hashlib
import io
import json
import os
import tarfile

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", 0))
CREATED = datetime.datetime.fromtimestamp(EPOCH, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def member(info):
    """Root's, and of the time of the release."""
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = EPOCH
    return info


def layer(folder):
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.GNU_FORMAT) as tar:
        # Below a folder it adds entries in the order of their names.
        for name in sorted(os.listdir(folder)):
            tar.add(os.path.join(folder, name), arcname=name, filter=member)
    return plain.getvalue()


class Layout:
    def __init__(self, path):
        self.tar = tarfile.open(path, mode="w", format=tarfile.GNU_FORMAT)
        self.kept = set()

    def add(self, name, data):
        if name not in self.kept:
            self.kept.add(name)
            info = member(tarfile.TarInfo(name))
            info.size, info.mode = len(data), 0o644
            self.tar.addfile(info, io.BytesIO(data))

    def blob(self, media_type, data):
        """Keeps some bytes, and gives their descriptor."""
        digest = hashlib.sha256(data).hexdigest()
        self.add(f"blobs/sha256/{digest}", data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    def json(self, media_type, value):
        return self.blob(media_type, json.dumps(value, sort_keys=True).encode())


def image(layout, architecture, folder, labels):
    plain = layer(folder)
    packed = layout.blob(LAYER, gzip.compress(plain, mtime=0))
    config = layout.json(CONFIG, {
        "created": CREATED, "architecture": architecture, "os": "linux",
        # As in the Dockerfile: root, for the capability, which Kubernetes gives to no other user.
        "config": {"User": "0:0", "Entrypoint": ["/usr/local/bin/kube-proxy"], "Labels": labels,
                   "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(plain).hexdigest()]},
    })
    manifest = layout.json(MANIFEST, {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [packed], "annotations": labels})
    return manifest | {"platform": {"architecture": architecture, "os": "linux"}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for option in ("--out", "--version", "--revision"):
        parser.add_argument(option, required=True)
    parser.add_argument("roots", nargs="+", metavar="ARCHITECTURE=FOLDER")
    given = parser.parse_args()
    labels = {"org.opencontainers.image." + name: value for name, value in {
        "title": "kube-proxy-nft",
        "description": "A drop-in kube-proxy that programs Services into nf_tables over netlink",
        "licenses": "GPL-3.0-or-later",
        "version": given.version,
        "revision": given.revision,
        "created": CREATED,
    }.items()}
    layout = Layout(given.out)
    layout.add("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
    manifests = [image(layout, *root.split("=", 1), labels) for root in sorted(given.roots)]
    index = layout.json(INDEX, {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests, "annotations": labels})
    tagged = index | {"annotations": {"org.opencontainers.image.ref.name": given.version}}
    layout.add("index.json", json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [tagged]}, sort_keys=True).encode())
    layout.tar.close()


main()
