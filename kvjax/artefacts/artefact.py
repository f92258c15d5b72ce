"""Artefacts: what was measured of a model or trained with it, one folder of tables with a header that says where they come from.

    FOLDER/header.json     method, model, tokenizer, data, settings, digest of the tables, schema version
    FOLDER/tables/         the tables, an orbax checkpoint

A folder is written beside its name, the header last, and renamed: it is there whole or not at all, whenever a process is killed.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from kvjax.artefacts import folders, header, sources, tables
from kvjax.protocols import LanguageModel

#: Artefacts that come with the library: BUILT_IN / model / method.
BUILT_IN = Path(__file__).parent / "built_in"


@dataclass(frozen=True)
class Artefact:
    """What `kvjax calibrate` or `kvjax train` made.

    Attributes:
        method: whose tables they are: a name of `kvjax.methods`.
        model: facts of the model they were made with (`model_facts`).
        data: what it read: source, split, sha256, samples, tokens.
        settings: the hyper-parameters; of what was trained the budget, too.
        tables: the arrays, by name.
        passages: a sketch of the text it read, by which a sweep tells that it is not evaluated on it; "" where that is not known.
    """

    method: str
    model: Mapping[str, object]
    data: Mapping[str, object]
    settings: Mapping[str, object]
    tables: Mapping[str, np.ndarray] = field(repr=False)
    passages: str = field(default="", repr=False)

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits over method, settings and tables: equal tables, equal digest."""
        found = hashlib.sha256(json.dumps([self.method, dict(self.settings)], sort_keys=True).encode())
        for name, x in sorted(self.tables.items()):
            x = np.ascontiguousarray(x)
            found.update(f"{name} {x.dtype.str} {x.shape}".encode() + x.tobytes())
        return found.hexdigest()[:12]

    @property
    def origin(self) -> str:
        """What a stage made from these tables says of itself; stages of one origin are equal."""
        return f"{self.method} of {self.model['name']}, {self.digest}"

    @property
    def header(self) -> dict[str, object]:
        """All but the tables, and their digest, dtypes and shapes."""
        tables = {name: [str(x.dtype), list(x.shape)] for name, x in self.tables.items()}
        fields = {name: getattr(self, name) for name in ("method", "model", "data", "settings")}
        return {"schema": header.SCHEMA, **fields, "tables": tables, "digest": self.digest, "passages": self.passages}


#: What a method takes for one: itself, its folder, or the name of a model whose artefact is built in.
ArtefactLike = Artefact | str | Path


def model_facts(lm: LanguageModel) -> dict[str, object]:
    """What of a model its tables depend on, beside its weights: name, shape, and the tokenizer's digest (None without one)."""
    d, config = lm.decoder, lm.decoder.config
    shape = dict(layers=d.layers, heads=d.heads, groups=d.groups, head_dim=d.head_dim, width=config.width, vocab=d.vocab)
    return {"name": Path(lm.name).name, **shape, "tokenizer": _tokenizer_digest(lm)}


def _tokenizer_digest(lm: LanguageModel) -> str | None:
    if lm.tokenizer is None:
        return None
    vocabulary = json.dumps(sorted(lm.tokenizer.inner.get_vocab().items())).encode()
    return hashlib.sha256(vocabulary).hexdigest()[:12]


def save(artefact: Artefact, folder: str | Path) -> Path:
    """Write the artefact; one that is there already is replaced whole, or not at all.

    Raises:
        OSError: the folder holds something else, or its parent cannot be written.
    """
    refuse_strangers(folder)
    folder = Path(folder).resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        tables.write(draft / "tables", artefact.tables)
        header.write(draft / "header.json", artefact.header, tables.sums(draft / "tables"))  # last: without it there is no artefact
        draft.chmod(0o755)
        folders.put(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def refuse_strangers(folder: str | Path) -> None:
    """Raise FileExistsError where `save` would replace a file, or a folder with anything but an artefact in it."""
    folder = Path(folder)
    if folder.exists() and not (folder / "header.json").is_file() and not (folder.is_dir() and not any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists and holds no artefact: name a new folder, an empty one, or an artefact's")


def load(folder: str | Path, method: str | None = None, lm: LanguageModel | None = None) -> Artefact:
    """Read an artefact and check it.

    Args:
        folder: what `save` wrote.   method: the method it must be for.   lm: the model it must be of.

    Raises:
        FileNotFoundError: no artefact there.
        ValueError: a header or tables that are damaged or not those of each other, another schema, method or model; the message
            lists all that differs.
    """
    folder = Path(folder).expanduser().resolve()
    if not (folder / "header.json").is_file():
        raise FileNotFoundError(
            f"{folder} holds no artefact (no header.json): make one with `kvjax calibrate` or `kvjax train`, "
            f"or use a built-in one: {built_in()}"
        )
    told = header.read(folder / "header.json")
    shapes = {name: header.empty(*of) for name, of in header.shapes(told, folder / "header.json").items()}
    if "files" in told:
        tables.check_sums(folder / "tables", told["files"])
    fields = {name: told[name] for name in ("method", "model", "data", "settings", "passages")}
    found = Artefact(**fields, tables=tables.read(folder / "tables", shapes))
    if found.digest != told["digest"]:
        raise ValueError(f"{folder}: the tables are not those of the header (digest {found.digest}, not {told['digest'][:40]!a})")
    check(found, method, lm)
    return found


def check(artefact: Artefact, method: str | None = None, lm: LanguageModel | None = None) -> None:
    """Raise ValueError where an artefact is not for this method or model, naming everything that differs."""
    wrong = [] if method in (None, artefact.method) else [f"method: wanted {method}, it is for {artefact.method}"]
    facts = model_facts(lm) if lm is not None else {}
    wrong += [
        f"{name}: the model has {mine!r}, the artefact {artefact.model.get(name)!r}"
        for name, mine in facts.items()
        if mine != artefact.model.get(name)
    ]
    if wrong:
        found = "; ".join(wrong)
        name = method or artefact.method
        raise ValueError(f"this artefact does not fit ({found}): make one with `kvjax calibrate {name}` or `kvjax train {name}`")


def built_in() -> list[str]:
    """Artefacts that come with the library, as model/method."""
    return sorted(str(path.parent.relative_to(BUILT_IN)) for path in BUILT_IN.glob("*/*/header.json"))


@cache
def _built_in(name: str, method: str) -> Artefact:
    return load(BUILT_IN / name / method, method)


def resolve(artefact: object, method: str, lm: LanguageModel | None = None) -> Artefact:
    """An Artefact as it is, the name of a model whose artefact is built in, or a folder → a checked Artefact.

    What it read is noted: `kvjax.artefacts.sources` tells it of any policy with a stage that was made from it.

    Raises:
        TypeError: something else.   FileNotFoundError, ValueError: as `load`; ValueError for None, too.
    """
    if artefact is None:
        raise ValueError(f"{method} needs its weights, or an 'artefact': {_for_example(method)}")
    if not isinstance(artefact, Artefact | str | Path):
        raise TypeError(f"an artefact is an Artefact, a folder, or one of the built-in {built_in()}; got {artefact!r}")
    found = artefact if isinstance(artefact, Artefact) else _from_disk(artefact, method)
    check(found, method, lm)
    if "name" in found.model:  # of no model it has no origin
        sources.note(found.origin, found.data, found.passages)
    return found


def _for_example(method: str) -> str:
    """What to type for an artefact of a method, and in Python."""
    models = [name for name, _, of in (path.partition("/") for path in built_in()) if of == method]
    model = models[0] if models else "FOLDER"
    how = f"for example {method}:artefact={model}, in Python {method}(artefact={model!r})"
    made = f"`kvjax calibrate {method}` or `kvjax train {method}` makes one"
    return f"{how}; {made} of another model" if models else f"{how}; {made}"


def _from_disk(artefact: str | Path, method: str) -> Artefact:
    if (BUILT_IN / str(artefact) / method / "header.json").is_file():
        return _built_in(str(artefact), method)
    return load(artefact, method)
