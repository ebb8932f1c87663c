#!/usr/bin/env python3
"""Prints a software bill of materials in SPDX 2.3: the program, and every crate that is linked into it or builds it.

    scripts/package/sbom.py > kithfs.spdx.json

The crates and their hashes are those of Cargo.lock, for this machine's platform. Crates of tests and benchmarks are left out. The time is
SOURCE_DATE_EPOCH, so that two runs print the same.
"""

import hashlib
import json
import os
import pathlib
import subprocess
import sys
import time
import tomllib

root = pathlib.Path(__file__).resolve().parents[2]


def cargo(*arguments):
    return subprocess.run(["cargo", *arguments], cwd=root, check=True, stdout=subprocess.PIPE, text=True).stdout


def main():
    host = next(line[6:] for line in subprocess.run(["rustc", "-vV"], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
                if line.startswith("host: "))
    metadata = json.loads(cargo("metadata", "--locked", "--format-version", "1", "--filter-platform", host))
    with open(root / "Cargo.lock", "rb") as file:
        hashes = {(p["name"], p["version"]): p.get("checksum") for p in tomllib.load(file)["package"]}
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    top = metadata["resolve"]["root"]

    used, left, links = {top}, [top], []
    while left:
        here = left.pop()
        for dependency in nodes[here]["deps"]:
            kinds = {kind["kind"] for kind in dependency["dep_kinds"]}
            if kinds == {"dev"} or dependency["pkg"] == here:
                continue
            links.append((here, dependency["pkg"], "DEPENDS_ON" if None in kinds else "BUILD_DEPENDENCY_OF"))
            if dependency["pkg"] not in used:
                used.add(dependency["pkg"])
                left.append(dependency["pkg"])

    def spdx_id(package):
        name = f"{packages[package]['name']}-{packages[package]['version']}"
        return "SPDXRef-" + "".join(c if c.isalnum() or c in ".-" else "-" for c in name)

    def described(package):
        facts = packages[package]
        entry = {
            "SPDXID": spdx_id(package),
            "name": facts["name"],
            "versionInfo": facts["version"],
            "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False,
            "licenseConcluded": "NOASSERTION",
            "licenseDeclared": (facts["license"] or "NOASSERTION").replace("/", " OR "),
            "copyrightText": "NOASSERTION",
            "externalRefs": [{
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": f"pkg:cargo/{facts['name']}@{facts['version']}",
            }],
        }
        checksum = hashes.get((facts["name"], facts["version"]))
        if checksum:
            entry["checksums"] = [{"algorithm": "SHA256", "checksumValue": checksum}]
        return entry

    order = sorted(used, key=spdx_id)
    relations = [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": spdx_id(top)}]
    for user, crate, kind in sorted(links, key=lambda link: (spdx_id(link[0]), spdx_id(link[1]), link[2])):
        # SPDX states a build dependency in the other direction: from the dependency to its user.
        source, target = (user, crate) if kind == "DEPENDS_ON" else (crate, user)
        relations.append({"spdxElementId": spdx_id(source), "relationshipType": kind, "relatedSpdxElement": spdx_id(target)})
    digest = hashlib.sha256(json.dumps([described(package) for package in order]).encode()).hexdigest()
    created = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    name = f"kithfs-{packages[top]['version']}"
    json.dump({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"https://spdx.org/spdxdocs/{name}-{digest[:32]}",
        "creationInfo": {
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(created)),
            "creators": ["Organization: The kithfs developers", "Tool: sbom.py"],
        },
        "packages": [described(package) for package in order],
        "relationships": relations,
    }, sys.stdout, indent=1)
    print()


main()
