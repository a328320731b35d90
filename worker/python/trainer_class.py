"""What /trainers/class names, for a trainer in Python (worker/python/trainer.py) and for `coalesced evaluate`: finds it, makes
it, and says how many samples it has.

A class is constructed with the job (a dict, as in job.json), the number of this trainer from 0, and the keyword arguments
/trainers/options. It has

    batch(step)              images, float32 (n, channels, height, width), and labels, int64 (n,), as NumPy arrays or
                             tensors: a function of the step, because a successor computes a step again
    model()                  optional: a torch.nn.Module with the names and shapes of the job's /model. The servers' values
                             replace its own; those that it should begin with belong into /init
    held_out(share, shares)  the batches of one share of the held-out data, in order; needed if the job evaluates

With /data/kind "class" it also says its size; otherwise /data says it:

    train_size               optional: the samples of an epoch, a whole number. An epoch has floor(train_size / (trainers
                             * batch)) steps of each trainer
    held_out_size            optional: of these n samples share i of k has those from floor(n * i / k) to
                             floor(n * (i + 1) / k) - 1

With /data/kind "class" two others will do; both are called with /trainers/options alone:

    a torch.utils.data.Dataset  of map style: (image, label) by index. A class whose constructor has an argument `train`, as
                                torchvision's have, is made with train=True, and for the held-out samples with train=False.
                                Without that argument nothing is held out
    a function                  that returns a Dataset for training, or a pair of that and a held-out one

Their samples are shuffled as those of /data (worker/data/loader.h). An image is float (channels, size, size), a tensor or
an array, and is taken as it is. A PIL image gets /data/channels, and its pixels become numbers by /data/mean and
/data/std. Python's, NumPy's and PyTorch's (the CPU's) generators are seeded for each sample by the job's seed, the epoch and the
sample, so that random transforms come out the same again. /data/limit counts.
"""
import importlib
import inspect
import operator
import random

from trainer_data import AUGMENT, BLOCK_MAX, LOW, Shuffle, normalized, share_of, words
from trainer_model import BadBatch, Network, check_entries, entries_of, resnet_entries, resnet_of
from worker_session import CORRUPT, INVALID, Failure, Hurry, last_lines, np

SAMPLES_MAX = LOW


def call(job, what, function, *arguments):
    """Calls the user's code; an exception names the class."""
    try:
        return function(*arguments)
    except (Failure, Hurry):
        raise
    except BadBatch as why:
        raise Failure(CORRUPT, f"{job['trainers']['class']}: {what}: {why}") from None
    except Exception as why:
        raise Failure(INVALID, f"{job['trainers']['class']}: {what}: {last_lines(why)}") from why


# ---- finding and making it ----
def make_data(job, trainer, beat):
    """The object that has the methods above. `beat` is called between two samples of a Dataset."""
    module, member = job["trainers"]["class"].split(":")
    found = getattr(importlib.import_module(module), member)
    data = importlib.import_module("torch.utils.data")
    is_dataset = inspect.isclass(found) and issubclass(found, data.Dataset) and not hasattr(found, "batch")
    if inspect.isclass(found) and not is_dataset:
        return found(job, trainer, **job["trainers"]["options"])
    if job["data"]["kind"] != "class":
        raise Failure(INVALID, f"{job['trainers']['class']} is no class with a method batch: expected \"class\" in /data/kind, "
                               f"got \"{job['data']['kind']}\"")  # fmt: skip
    seed_generators(words(job["seed"], AUGMENT, BLOCK_MAX - 1, 0, 0, 0))  # random splits are the same in each trainer
    return Samples(job, trainer, *make_datasets(found, job["trainers"]["options"]), beat)


def make_datasets(found, options):
    """The training samples, and those held out or None."""
    if not inspect.isclass(found):
        made = found(**options)
        return made if isinstance(made, (tuple, list)) and len(made) == 2 else (made, None)
    if "train" in inspect.signature(found).parameters and "train" not in options:
        return found(**options, train=True), found(**options, train=False)
    return found(**options), None


# ---- its model ----
def make_network(job, data, beat):
    """The class's own model, or torchvision's. `beat` is called between two layers."""
    model = data.model() if hasattr(data, "model") else resnet_of(job)
    if not hasattr(model, "state_dict"):
        raise Failure(INVALID, f"{job['trainers']['class']}: model gave a {type(model).__name__}: expected a torch.nn.Module")
    check_entries(entries_of(model), resnet_entries(job), job["trainers"]["class"])
    return Network(job, model, beat)


# ---- its size ----
def size_of(job, data, name):
    """A number of samples; 0: the class does not say it."""
    value = getattr(data, name, None)
    if value is None:
        return 0
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = 0
    if not 1 <= number <= SAMPLES_MAX:
        raise Failure(INVALID, f"{job['trainers']['class']}: {name} is {str(value)[:60]}: expected a whole number in "
                               f"1..{SAMPLES_MAX}")  # fmt: skip
    return number


def sizes_of(job, data):
    """The training samples and those held out, as the class says them; 0: it does not. Checks that it has what the job
    asks for."""

    def refuse(why):
        raise Failure(INVALID, f"{job['trainers']['class']}: {why}")

    kind, evaluates = job["data"]["kind"], job["evaluation"]["every"] is not None
    has_held_out = callable(getattr(data, "held_out", None))
    if not callable(getattr(data, "batch", None)):
        refuse("expected a method batch, or a torch.utils.data.Dataset")
    train, held_out = (size_of(job, data, name) if kind == "class" else 0 for name in ("train_size", "held_out_size"))
    if not has_held_out and (held_out > 0 or (evaluates and kind not in ("synthetic", "class"))):
        refuse("expected a method held_out, or null for /evaluation/every")
    if kind != "class":
        return 0, 0
    if train == 0 and job["stop"]["updates"] is None:
        refuse("expected train_size, or a limit in /stop/updates")
    if evaluates and has_held_out and held_out == 0:
        refuse("it has held_out: expected held_out_size, too, or null for /evaluation/every")
    if evaluates and held_out > 0 and train == 0:
        refuse("evaluations come at the ends of epochs: expected train_size, or null for /evaluation/every")
    return train, held_out


def evaluate_share(network, data, size, share, shares, tell=lambda count, total: None):
    """The share's loss, hits and samples. `size`: of all held-out samples; 0: it is not the class that says it. `tell` is
    called with the number of samples so far, and of the share."""
    begin, end = share_of(size, share, shares)
    total, right, count = network.evaluate(data.held_out(share, shares), lambda count: tell(count, end - begin))
    if size > 0 and count != end - begin:
        raise BadBatch(f"share {share} of {shares} has {count} samples: expected {end - begin} of held_out_size, {size}")
    return total, right, count


# ---- Datasets ----
def seed_generators(drawn):
    """Seeds what a Dataset may draw from, with four words."""
    import torch

    first, second, third, fourth = (int(word) for word in drawn)
    torch.default_generator.manual_seed(first << 32 | second)  # torch.manual_seed takes 20 us, for GPUs
    random.seed(third)
    np.random.seed(fourth)


def length_of(job, dataset):
    iterable = importlib.import_module("torch.utils.data").IterableDataset
    if isinstance(dataset, iterable) or not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise Failure(INVALID, f"{job['trainers']['class']}: got a {type(dataset).__name__}: expected a Dataset of map style, "
                               "with __len__ and __getitem__")  # fmt: skip
    return len(dataset)


class Samples:
    """The batches of Datasets."""

    def __init__(self, job, trainer, train, held_out, beat):
        self.job, self.beat, self.train, self.held = job, beat, train, held_out
        self.shape = (job["data"]["channels"], job["data"]["size"], job["data"]["size"])
        self.train_size = length_of(job, train)
        if job["data"]["limit"] is not None:
            self.train_size = min(self.train_size, job["data"]["limit"])
        self.held_out_size = None if held_out is None else length_of(job, held_out)
        if held_out is None:
            self.held_out = None
        self.shuffle = Shuffle(job, trainer, self.train_size)

    def batch(self, step):
        which, shuffle = self.shuffle.at(step), self.shuffle
        return self._batch(self.train, which, shuffle.lap, shuffle.epoch)

    def held_out(self, share, shares):
        begin, end = share_of(self.held_out_size, share, shares)
        size = self.job["evaluation"]["batch"]
        for first in range(begin, end, size):
            yield self._batch(self.held, np.arange(first, min(end, first + size)), BLOCK_MAX, 0)

    def _batch(self, dataset, which, block, epoch):
        drawn = words(self.job["seed"], AUGMENT, block, which, epoch & LOW, epoch >> 32)
        images, labels = np.empty((len(which), *self.shape), np.float32), np.empty(len(which), np.int64)
        for i, index in enumerate(which.tolist()):
            self.beat()
            seed_generators(drawn[:, i])
            images[i], labels[i] = self._sample(dataset[index], f"sample {index}")
        return images, labels

    def _sample(self, pair, name):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise BadBatch(f"{name} is a {type(pair).__name__}: expected a pair of an image and a label")
        image, label = pair
        try:
            label = operator.index(label)
        except TypeError:
            raise BadBatch(f"{name}: its label is {str(label)[:40]}, a {type(label).__name__}: expected a whole number") from None
        return self._numbers(image, name), label

    def _numbers(self, image, name):
        if hasattr(image, "getbands"):  # a PIL image
            pixels = np.asarray(image.convert("L" if self.shape[0] == 1 else "RGB"))
            numbers = normalized(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1), self.job["data"])
        else:
            numbers = image.detach().cpu().numpy() if hasattr(image, "detach") else image
        if not isinstance(numbers, np.ndarray):
            raise BadBatch(f"{name}: its image is a {type(image).__name__}: expected a tensor, a NumPy array or a PIL image")
        if numbers.shape != self.shape or not np.issubdtype(numbers.dtype, np.floating):
            raise BadBatch(f"{name}: its image is {numbers.dtype} {numbers.shape}: expected float32 {self.shape} by "
                           "/data/channels and /data/size; torchvision.transforms.ToTensor makes floats")  # fmt: skip
        return numbers
