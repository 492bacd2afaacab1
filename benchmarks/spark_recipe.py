"""The Spark recipe of docs/scale.md, run as it stands there under real pyspark and compared with the classifier itself.

Needs pyspark and Java 17 or newer beside adapler. The model is a tiny one made from a config; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from adapler.records import Record, write_records

OUT = Path(__file__).parent / "results" / "prove-spark.json"
SAME = 1e-6  # float32, another batch


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark_recipe", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=OUT, help="the results file")
    chosen = parser.parse_args()

    import pyarrow as pa
    import pyarrow.parquet as pq

    from tests.tiny import tiny_classifier, tiny_texts
    from tests.unit.test_scale_recipes import PAGE, recipe

    out = chosen.out.resolve()
    texts = tiny_texts(chosen.texts)
    classifier = tiny_classifier(eta=0.4)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        classifier.save_pretrained("path/to/model")
        pq.write_table(pa.table({"id": list(range(len(texts))), "text": texts}), "in")
        code = recipe("Spark").replace('"path/to/model"', repr(str(Path("path/to/model").resolve())))
        names: dict[str, object] = {"__name__": "__main__"}
        exec(compile(code, str(PAGE), "exec"), names)
        found = sorted(pq.read_table("out").to_pylist(), key=lambda row: row["id"])
        os.chdir("/")
    wanted = classifier(texts)
    same = [
        (row["label"], row["tokens"], row["tokens_kept"]) == (each.label, len(each.tokens), each.lengths[-1])
        and abs(row["score"] - each.score) < SAME
        for row, each in zip(found, wanted, strict=True)
    ]
    if not all(same) or [row["id"] for row in found] != list(range(len(texts))):
        sys.exit(f"{len(same) - sum(same)} of {len(same)} answers differ")
    record = Record(
        kind="prove", variant="Spark mapInPandas as the classifier", value=float(sum(same)), unit="answers the same"
    )
    record.n = len(texts)
    record.versions["pyspark"] = importlib.metadata.version("pyspark")
    record.versions["java"] = subprocess.run(["java", "-version"], capture_output=True, text=True).stderr.splitlines()[0]
    write_records(out, [record])
    sys.stdout.write(f"{sum(same)} answers the same; {out}\n")


if __name__ == "__main__":
    main()
