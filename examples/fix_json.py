"""Put broken JSON right: keep what can be read, and fit a schema whatever the model says.

python examples/fix_json.py "{name: 'Mia', 'age': 4,}" [MODEL]
"""

import json
import re
import sys

from jsonschema import Draft202012Validator, validate

from mlx_diffusiongemma import CanvasConstraint, GenerationOptions, load

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
}

broken = sys.argv[1] if len(sys.argv) > 1 else "{name: 'Mia', 'age': 4,"
runtime = load(sys.argv[2] if len(sys.argv) > 2 else "demo")
properties = dict(SCHEMA["properties"])
for name, schema in properties.items():
    # A value that can be read and fits is all that may stand there; the rest is up to the model.
    kept = r"[^'\",}]+" if schema["type"] == "string" else r"-?\d+"
    found = re.search(rf"\b{name}\W*?[:=]\s*['\"]?({kept})", broken)
    value = found and (found[1] if schema["type"] == "string" else int(found[1]))
    if Draft202012Validator(schema).is_valid(value):
        properties[name] = {"const": value}
constraint = CanvasConstraint.json_schema({**SCHEMA, "properties": properties})
options = GenerationOptions(seed=1, max_tokens=60, constraint=constraint)
result = runtime.generate(f"Make JSON: {broken}", options)
validate(json.loads(result.text), SCHEMA)
print(f"{broken}\n{result.text}")
