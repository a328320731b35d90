"""Gymnasium's spaces, and the form in which observations and actions travel.

    Space.of_observation  Box, Discrete, MultiDiscrete and MultiBinary, and Dict and Tuple of these, nested
    Space.of_action       the same; parts are all choices, or all Boxes

A space of parts becomes one row: the parts stand behind one another in the order of Gymnasium's own
`flatten_space`. With images among them the row is bytes, in which each part begins at a multiple of 4. An image is (height,
width, channels).
"""
import importlib

from worker_session import INVALID, Failure, np

PARTS_MAX, NAME_BYTES_MAX = 256, 63  # environment.h's
NAMES = {"<f4": "float32", "u1": "uint8", "<u4": "int32"}


def one_or_all(numbers):
    """A member of a description: one number, or a list where they differ."""
    return numbers[0] if len(set(numbers)) == 1 else numbers


def refuse(what, space, expected):
    raise Failure(INVALID, f"the {what} space is {space}: expected {expected}")


def gymnasium_spaces():
    return importlib.import_module("gymnasium").spaces


def parts_of(space, name=""):
    """The leaves of nested Dicts and Tuples, in Gymnasium's order: the path of each, its name, and its space."""
    spaces = gymnasium_spaces()
    if isinstance(space, spaces.Dict):
        members = space.spaces.items()
    elif isinstance(space, spaces.Tuple):
        members = enumerate(space.spaces)
    else:
        yield (), name, space
        return
    for key, member in members:
        for path, leaf_name, leaf in parts_of(member, f"{name}.{key}" if name else str(key)):
            yield (key, *path), leaf_name, leaf


def is_nested(space):
    spaces = gymnasium_spaces()
    return isinstance(space, (spaces.Dict, spaces.Tuple))


def member(value, path):
    for key in path:
        value = value[key]
    return value


class Space:
    """shape and dtype are what travels; convert brings a value of Gymnasium's into that form, or back. An action that
    chooses has `choices`, a list, in place of the bounds low and high. `parts`, of a nested action: the path, the name and
    the Space of each part."""

    parts = ()

    def __init__(self, dtype, shape, convert, bounds=(), choices=None):
        self.dtype, self.shape, self.convert, self.bounds, self.choices = dtype, tuple(shape), convert, bounds, choices
        self.description = {"dtype": NAMES[dtype], "shape": list(self.shape)}
        for key, bound in zip(("low", "high"), bounds):  # null is no bound
            self.description[key] = one_or_all([float(v) if np.isfinite(v) else None for v in np.ravel(bound)])
        if choices is not None:
            self.description["choices"] = one_or_all(choices)

    # -- observations --
    @classmethod
    def of_observation(cls, space, frames):
        single = cls._joined_observation(space) if is_nested(space) else cls._one_observation(space)
        return single if frames == 1 else single._stacked(frames)

    @classmethod
    def _one_observation(cls, space, what="observation"):
        spaces = gymnasium_spaces()
        if isinstance(space, spaces.Discrete):
            return cls._one_hot([space.n], lambda value: [int(value) - int(space.start)])
        if isinstance(space, spaces.MultiDiscrete):
            starts = np.asarray(getattr(space, "start", 0))
            return cls._one_hot(np.ravel(space.nvec), lambda value: np.ravel(np.asarray(value) - starts))
        if isinstance(space, spaces.MultiBinary):
            return cls("<f4", space.shape, cls._checked(space.shape, "<f4"), (0, 1))
        if not isinstance(space, spaces.Box) or len(space.shape) > 3:
            refuse(what, space, "a Box of rank 3 at most, Discrete, MultiDiscrete or MultiBinary, or a Dict or "
                                         "Tuple of these")  # fmt: skip
        if space.dtype != np.uint8:
            return cls("<f4", space.shape, cls._checked(space.shape, "<f4"), (space.low, space.high))
        return cls._image(space)

    @classmethod
    def _image(cls, space):
        """Bytes. Those of rank 2 get a channel; those of rank 3, whose first axis is the shortest one, begin with the
        channels, which is Stable-Baselines3's rule, too."""
        check = cls._checked(space.shape, "u1")
        if len(space.shape) == 2:
            arrange = lambda image: image[..., np.newaxis]
        elif channels_first(space):
            arrange = lambda image: np.moveaxis(image, 0, -1)
        else:
            arrange = lambda image: image
        bounds = (arrange(space.low), arrange(space.high))
        return cls("u1", bounds[0].shape, lambda value: arrange(check(value)), bounds)

    @classmethod
    def _joined_observation(cls, space):
        parts = []
        for path, name, leaf in parts_of(space):
            what = f"observation's part {name}: its"
            part = cls._one_observation(leaf, what)
            if part.dtype == "u1" and len(part.shape) != 3:  # bytes that are no image are numbers, as in Stable-Baselines3
                part = cls("<f4", part.shape, lambda value, part=part: part.convert(value).astype("<f4"), part.bounds)
            parts.append((path, name, part))
        cls._check_names(space, [name for _, name, _ in parts])
        has_image = any(part.dtype == "u1" for _, _, part in parts)

        def convert(value):
            try:
                rows = [part.convert(member(value, path)).ravel() for path, _, part in parts]
            except (KeyError, IndexError, TypeError, ValueError):  # which part it is takes time, once
                rows = [cls._part(value, *part).ravel() for part in parts]
            return np.concatenate([in_words(row) for row in rows] if has_image else rows)

        sizes = [in_words_size(part) if has_image else part.size() for _, _, part in parts]
        joined = cls("u1" if has_image else "<f4", [sum(sizes)], convert)
        joined.bounds = None if has_image else cls._joined_bounds(parts)
        joined.description["parts"] = [{"name": name, **part.description} for _, name, part in parts]
        return joined

    @staticmethod
    def _check_names(space, names):
        """As environment.h has them."""
        if not 1 <= len(names) <= PARTS_MAX:
            refuse("observation", space, f"1..{PARTS_MAX} parts, and not {len(names)}")
        for name in names:
            if not 1 <= len(name.encode(errors="replace")) <= NAME_BYTES_MAX:
                refuse("observation", space, f"names of parts of 1..{NAME_BYTES_MAX} bytes, and not {name!r}")
            if names.count(name) > 1:
                refuse("observation", space, f"parts with different names, and not {name!r} more than once")

    @staticmethod
    def _part(value, path, name, part):
        """The part of a value, converted. ValueError: a sentence."""
        try:
            one = member(value, path)
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"has no part {name}") from None
        try:
            return part.convert(one)
        except (TypeError, ValueError) as why:
            raise ValueError(f"has a part {name} that {why}") from None

    @staticmethod
    def _joined_bounds(parts):
        """Of each element; a part has one bound for all of its elements, or one for each."""
        sides = [[np.ravel(part.bounds[side]) for _, _, part in parts] for side in (0, 1)]
        sizes = [part.size() for _, _, part in parts]
        return [np.concatenate([np.broadcast_to(bound, n) for bound, n in zip(bounds, sizes)]) for bounds in sides]

    @classmethod
    def _one_hot(cls, counts, index):
        """A one-hot vector for each choice."""
        offsets = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
        total = int(np.sum(counts))

        def convert(value):
            numbers = np.asarray(index(value), np.int64)
            if numbers.shape != offsets.shape or np.any(numbers < 0) or np.any(numbers >= counts):
                raise ValueError(f"is {value}, beyond its space")
            row = np.zeros(total, "<f4")
            row[offsets + numbers] = 1
            return row

        return cls("<f4", [total], convert, (0, 1))

    @staticmethod
    def _checked(shape, dtype):
        def convert(value):
            row = np.asarray(value)
            if row.shape != shape:
                raise ValueError(f"has the shape {row.shape}, expected {shape}")
            if dtype == "u1" and row.dtype != np.uint8:
                raise ValueError(f"has the dtype {row.dtype}, expected uint8")
            if dtype == "<f4":
                if row.dtype.kind not in "fiub":
                    raise ValueError(f"has the dtype {row.dtype}, expected numbers")
                row = row.astype("<f4")
                if not np.all(np.isfinite(row)):
                    raise ValueError(f"has the value {row[~np.isfinite(row)].flat[0]}, expected finite ones")
            return row

        return convert

    def size(self):
        return int(np.prod(self.shape, dtype=np.int64))

    def _stacked(self, frames):
        """The same space with `frames` observations joined along the last axis."""
        if self.bounds is None:
            raise Failure(INVALID, f"/environment/frames: expected 1, got {frames}: its observation has parts, and an image among them")
        shape = self.shape or (1,)
        bounds = [np.concatenate([np.broadcast_to(bound, shape)] * frames, axis=-1) for bound in self.bounds]
        whole = (*shape[:-1], shape[-1] * frames)
        return Space(self.dtype, whole, lambda value: self.convert(value).reshape(shape), bounds)

    # -- actions --
    @classmethod
    def of_action(cls, space):
        return cls._joined_action(space) if is_nested(space) else cls._one_action(space)

    @classmethod
    def _one_action(cls, space, what="action"):
        spaces = gymnasium_spaces()
        if isinstance(space, spaces.Discrete):
            start = int(space.start)
            return cls("<u4", [], lambda row: int(row) + start, choices=[int(space.n)])
        if isinstance(space, spaces.MultiDiscrete) and len(space.shape) == 1:
            starts = np.asarray(getattr(space, "start", 0))
            return cls("<u4", space.shape, lambda row: (row + starts).astype(space.dtype),
                       choices=[int(n) for n in space.nvec])  # fmt: skip
        if isinstance(space, spaces.MultiBinary) and len(space.shape) == 1:
            return cls("<u4", space.shape, lambda row: row.astype(space.dtype), choices=[2] * space.shape[0])
        if isinstance(space, spaces.Box) and space.dtype.kind == "f":
            if not (np.all(np.isfinite(space.low)) and np.all(np.isfinite(space.high))):
                refuse(what, space, "finite bounds")
            shape = [] if space.shape == () else [int(np.prod(space.shape))]
            return cls("<f4", shape, lambda row: row.reshape(space.shape).astype(space.dtype),
                       (space.low, space.high))  # fmt: skip
        return refuse(what, space, "Discrete, a MultiDiscrete or MultiBinary of rank 1, a Box of floats, or a Dict or "
                                       "Tuple of these")  # fmt: skip

    @classmethod
    def _joined_action(cls, space):
        parts = [
            (path, name, cls._one_action(leaf, f"action's part {name}: its")) for path, name, leaf in parts_of(space)
        ]
        dtypes = {part.dtype for _, _, part in parts}
        if len(dtypes) != 1:
            refuse("action", space, "parts that are all choices, or all Boxes")
        ends = np.cumsum([part.size() for _, _, part in parts])

        def convert(row):
            values = {}
            for (path, _, part), end in zip(parts, ends):
                values[path] = part.convert(row[end - part.size() : end].reshape(part.shape))
            return rebuild(space, values)

        if dtypes == {"<f4"}:
            return cls("<f4", [int(ends[-1])], convert, cls._joined_bounds(parts))
        joined = cls("<u4", [int(ends[-1])], convert, choices=[n for _, _, part in parts for n in part.choices])
        joined.parts = parts
        return joined

    def flat_mask(self, mask):
        """An action's mask as one row. That of a nested action is nested likewise. ValueError: a sentence."""
        if not self.parts:
            return flat(mask)
        rows = []
        for path, name, part in self.parts:
            try:
                rows.append(flat(member(mask, path)))
            except (KeyError, IndexError, TypeError):
                raise ValueError(f"has no part {name}") from None
            if rows[-1].size != sum(part.choices):
                raise ValueError(f"has {rows[-1].size} numbers in part {name}: expected {sum(part.choices)}")
        return np.concatenate(rows)


def in_words(row):
    """The bytes of a part, filled up with zeros to a multiple of 4."""
    row = row.view(np.uint8)
    return np.concatenate([row, np.zeros(-len(row) % 4, np.uint8)])


def in_words_size(part):
    """How many bytes that makes."""
    return -(-part.size() * np.dtype(part.dtype).itemsize // 4) * 4


def channels_first(space):
    """Whether the images of a Box of bytes begin with their channels."""
    return len(space.shape) == 3 and int(np.argmin(space.shape)) == 0


def rebuild(space, values, path=()):
    """The value of a nested space out of those of its leaves."""
    spaces = gymnasium_spaces()
    if isinstance(space, spaces.Dict):
        return {key: rebuild(one, values, (*path, key)) for key, one in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(rebuild(one, values, (*path, i)) for i, one in enumerate(space.spaces))
    return values[path]


def flat(mask):
    """The mask of one part, which may have an array for each of its choices."""
    return np.concatenate([np.ravel(one) for one in mask]) if isinstance(mask, (tuple, list)) and len(mask) else np.ravel(mask)
