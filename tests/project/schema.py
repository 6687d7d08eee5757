"""Compares objects with the schemas of the Kubernetes API, in which an unknown field is an error.

    schema.py FOLDER VERSION <OBJECTS     a JSON list; FOLDER is where `make deps` unpacks tests/charts.txt

Prints a line for each error, and nothing when all is well.
"""

import json
import sys

folder, version = sys.argv[1:]
sys.path.insert(0, folder)
import jsonschema  # noqa: E402

schemas = f"{folder}/kubernetes_validate/kubernetes-json-schema/v{version}-local-strict/"
store = {"/api/_definitions.json": json.load(open(schemas + "_definitions.json"))}
for value in json.load(sys.stdin):
    group, _, api = value["apiVersion"].rpartition("/")
    name = value["kind"].lower() + (f"-{group.split('.')[0]}" if group else "") + f"-{api}.json"
    schema = json.load(open(schemas + name))
    resolver = jsonschema.RefResolver("/api/" + name, schema, store)
    for error in jsonschema.Draft202012Validator(schema, resolver=resolver).iter_errors(value):
        print(value["kind"], value["metadata"]["name"], "/".join(map(str, error.absolute_path)), error.message)
