"""Which samples a trainer in Python (worker/python/trainer.py) takes in a step, and the images of a job's /data as the class
"trainer_data:Images". It makes the batches that our own trainers make, by the formulas of worker/data/loader.h and
transform.h: so the two can be compared, update by update. Of /data/kind it knows "synthetic" and "idx".
"""
import gzip
import os
import zlib

from worker_session import CORRUPT, INVALID, NOT_FOUND, Failure, np

# ---- draws by position: kernels/base/rng.h ----
SHUFFLE, AUGMENT, DATA = 5, 6, 7
BLOCK_MAX = (1 << 24) - 1
LOW = 0xFFFFFFFF


def words(seed, stream, block, element, step, episode):
    """Philox4x32-10 of (seed, stream, block) at (element, step, episode); element may be an array: (4, elements)."""
    element = np.asarray(element, np.uint64)
    c = [np.full(element.shape, stream << 24 | block, np.uint64), element,
         np.full(element.shape, step & LOW, np.uint64), np.full(element.shape, episode, np.uint64)]  # fmt: skip
    keys = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        first, second = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(second >> np.uint64(32)) ^ c[1] ^ np.uint64(keys[0]), second & np.uint64(LOW),
             (first >> np.uint64(32)) ^ c[3] ^ np.uint64(keys[1]), first & np.uint64(LOW)]  # fmt: skip
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(c)


def below(high, low, bound):
    """Uniform in [0, bound), from two words: the upper half of their 128-bit product with the bound."""
    bound = np.asarray(bound, np.uint64)
    carry = low * bound >> np.uint64(32)
    return (high * bound + carry) >> np.uint64(32)


def shuffled(count, seed, epoch, lap):
    """The epoch's permutation of [0, count): that of the job file's trainers (lap 0), or of those added to them."""
    places = np.arange(count)
    drawn = words(seed, SHUFFLE, lap, places // 2, epoch & 0xFFFFFFFF, epoch >> 32)
    odd = places % 2 == 1
    others = below(np.where(odd, drawn[2], drawn[0]), np.where(odd, drawn[3], drawn[1]), places + 1).tolist()
    order = list(range(count))
    for i in range(count - 1, 0, -1):
        order[i], order[others[i]] = order[others[i]], order[i]
    return np.asarray(order)


class Shuffle:
    """The order of `size` training samples, shuffled anew in each epoch: worker/data/loader.h, "Which sample"."""

    def __init__(self, job, trainer, size):
        self.seed, self.size = job["seed"], size
        self.trainers, self.batch = job["trainers"]["count"], job["trainers"]["batch"]
        self.lap, self.seat = divmod(trainer, self.trainers)
        self.epoch, self.order = None, None

    def at(self, step):
        """The samples of the trainer's batch; `epoch` is the step's from then on."""
        epoch, place = divmod(step, self.size // (self.trainers * self.batch))
        if self.epoch != epoch:
            self.epoch, self.order = epoch, shuffled(self.size, self.seed, epoch, self.lap)
        first = (place * self.trainers + self.seat) * self.batch
        return self.order[first : first + self.batch]


def share_of(size, share, shares):
    """The first of a share's held-out samples, and the end."""
    return size * share // shares, size * (share + 1) // shares


def normal(count, seed, step, trainer):
    """Draws of normal(0, 1), in groups of 64."""
    groups = -(-count // 64)
    drawn = words(seed, DATA, step >> 32, np.arange(16 * groups), step & 0xFFFFFFFF, trainer).astype(np.float64)
    pairs = []
    for first, second in (drawn[0:2], drawn[2:4]):
        radius = np.sqrt(-2 * np.log((np.floor(first / 2) + 0.5) / 2**31))
        angle = 2 * np.pi * second / 2**32
        pairs += [radius * np.cos(angle), radius * np.sin(angle)]
    numbers = np.stack(pairs).reshape(4, groups, 16).transpose(1, 0, 2)
    return numbers.reshape(-1)[:count].astype(np.float32)


def normalized(pixels, data):
    """Pixels in 0..255, (…, channels, height, width), by /data's mean and standard deviation."""
    mean, std = (np.broadcast_to(np.asarray(data[key], np.float32), data["channels"]) for key in ("mean", "std"))
    return (pixels.astype(np.float32) / np.float32(255) - mean[:, None, None]) / std[:, None, None]


# ---- files ----
def read_idx(folder, name, magic):
    """The numbers of an idx file of bytes, plain or gzipped."""
    for path, opener in ((os.path.join(folder, name), open), (os.path.join(folder, name + ".gz"), gzip.open)):
        if not os.path.exists(path):
            continue
        try:
            with opener(path, "rb") as file:
                data = file.read()
        except (OSError, EOFError, zlib.error) as why:
            raise Failure(CORRUPT, f"{path}: {why}") from why
        rank = magic & 0xFF
        if len(data) < 4 + 4 * rank or int.from_bytes(data[:4], "big") != magic:
            raise Failure(CORRUPT, f"{path}: expected an idx file of bytes of rank {rank}")
        shape = np.frombuffer(data, ">u4", rank, 4).astype(np.int64)
        if len(data) != 4 + 4 * rank + np.prod(shape):
            raise Failure(CORRUPT, f"{path}: {len(data)} bytes: expected {4 + 4 * rank + np.prod(shape)}")
        return np.frombuffer(data, "u1", -1, 4 + 4 * rank).reshape(shape)
    raise Failure(NOT_FOUND, f"{os.path.join(folder, name)}: expected the file, plain or with .gz")


class Images:
    def __init__(self, job, trainer):
        self.job, self.trainer, self.data = job, trainer, job["data"]
        self.count, self.size = job["trainers"]["batch"], self.data["size"]
        if self.data["kind"] == "synthetic":
            return
        if self.data["kind"] != "idx":
            raise Failure(INVALID, f"/data/kind is {self.data['kind']}: expected synthetic or idx, or a class of one's own "
                                   "in /trainers/class")  # fmt: skip
        self.images, self.labels = self._read("train")
        limit = self.data["limit"]
        self.images, self.labels = self.images[:limit], self.labels[:limit]
        self.shuffle = Shuffle(job, trainer, len(self.labels))
        self.held = None

    def _read(self, split):
        images = read_idx(self.data["path"], f"{split}-images-idx3-ubyte", 0x803)
        labels = read_idx(self.data["path"], f"{split}-labels-idx1-ubyte", 0x801)
        if len(images) != len(labels):
            raise Failure(CORRUPT, f"{self.data['path']}: {len(images)} images and {len(labels)} labels of {split}")
        return images, labels.astype(np.int64)

    def batch(self, step):
        if self.data["kind"] == "synthetic":
            return self._synthetic(step)
        which = self.shuffle.at(step)
        return self._normalized(self._viewed(self._fitted(self.images[which]), which)), self.labels[which]

    def held_out(self, share, shares):
        if self.held is None:
            self.held = self._read("t10k")
        images, labels = self.held
        begin, end = share_of(len(labels), share, shares)
        for first in range(begin, end, self.job["evaluation"]["batch"]):
            which = slice(first, min(end, first + self.job["evaluation"]["batch"]))
            yield self._normalized(self._fitted(images[which])), labels[which]

    def _synthetic(self, step):
        shape = (self.count, self.data["channels"], self.size, self.size)
        images = normal(int(np.prod(shape)), self.job["seed"], step, self.trainer).reshape(shape)
        drawn = words(self.job["seed"], DATA, BLOCK_MAX, np.arange(self.count), 0, self.trainer)
        return images, below(drawn[0], drawn[1], self.job["model"]["classes"]).astype(np.int64)

    def _fitted(self, images):
        """Of the size that the model sees, as float32 (n, size, size)."""
        images, size = images.astype(np.float32), self.size
        if images.shape[1:] == (size, size):
            return images
        if self.data["fit"] == "resize":
            import torch

            return torch.nn.functional.interpolate(torch.from_numpy(images[:, None]), (size, size), mode="bilinear",
                                                   antialias=True).numpy()[:, 0]  # fmt: skip
        fitted = np.zeros((len(images), size, size), np.float32)
        here, there = [], []  # where the middle lies in the image, and where it goes
        for side in images.shape[1:]:
            cut, margin = max(0, (side - size) // 2), max(0, (size - side) // 2)
            kept = min(side, size)
            here.append(slice(cut, cut + kept))
            there.append(slice(margin, margin + kept))
        fitted[:, there[0], there[1]] = images[:, here[0], here[1]]
        return fitted

    def _viewed(self, images, which):
        """Cropped and mirrored by chance."""
        crop, size = self.data["crop"], self.size
        epoch = self.shuffle.epoch
        drawn = words(self.job["seed"], AUGMENT, self.shuffle.lap, which, epoch & LOW, epoch >> 32)
        ys, xs = (drawn[1:3] * np.uint64(2 * crop + 1) >> np.uint64(32)).astype(int)
        padded = np.pad(images, ((0, 0), (crop, crop), (crop, crop)))
        viewed = np.stack([image[y : y + size, x : x + size] for image, y, x in zip(padded, ys, xs)])
        mirrored = (drawn[0] >> np.uint64(31) != 0) & self.data["flip"]
        viewed[mirrored] = viewed[mirrored, :, ::-1]
        return viewed

    def _normalized(self, images):
        """(n, channels, size, size)."""
        return normalized(np.repeat(images[:, None], self.data["channels"], 1), self.data)
