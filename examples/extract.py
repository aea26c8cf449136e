"""Turn a text into a record: the answer is JSON that a pydantic model accepts, whatever happens.

python examples/extract.py "Mia the fox is 4 years old." [MODEL]
"""

import sys
from typing import Literal

from pydantic import BaseModel, Field

from mlx_diffusiongemma import CanvasConstraint, GenerationOptions, load


class Animal(BaseModel):
    """What to find in the text."""

    name: str = Field(max_length=12)
    kind: Literal["fox", "frog", "cat", "dog"]
    age: int = Field(ge=0, le=99)


text = sys.argv[1] if len(sys.argv) > 1 else "Mia the fox is 4 years old."
runtime = load(sys.argv[2] if len(sys.argv) > 2 else "demo")
options = GenerationOptions(seed=1, max_tokens=100, constraint=CanvasConstraint.json_schema(Animal))
result = runtime.generate(f"Write name, kind and age as JSON: {text}", options)
print(Animal.model_validate_json(result.text))
