"""Datasets for /trainers/class, for test/daemon/test_python_data.sh."""
import random

import numpy as np
import torch
from torch.utils import data


class Blobs(data.Dataset):
    """A bright square at one of four places, in noise that each visit draws anew from three generators."""

    def __init__(self, count=40, held_out=9, train=True):
        self.count = count if train else held_out

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index >= self.count:
            raise IndexError(index)
        image = torch.randn(3, 16, 16) * 0.1 + random.random() * 0.1 + float(np.random.rand()) * 0.1
        y, x = divmod(index % 4, 2)
        image[:, 8 * y : 8 * y + 8, 8 * x : 8 * x + 8] += 1
        return image, index % 4


class Numbers(Blobs):
    """The same of the index alone, and the label as a tensor."""

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        return rng.normal(size=(3, 16, 16)), torch.tensor(index % 4)


class NumbersByStep:
    """What trainer_class.Samples makes of Numbers, by worker/data/loader.h's formulas."""

    def __init__(self, job, trainer):
        from trainer_data import shuffled

        self.shuffled = shuffled
        self.job, self.trainer = job, trainer
        self.train_size, self.held_out_size = 40, 9

    def rows(self, which, train):
        numbers = Numbers(train=train)
        images, labels = zip(*(numbers[int(i)] for i in which))
        return np.stack(images).astype(np.float32), np.asarray([int(label) for label in labels])

    def batch(self, step):
        count, batch = self.job["trainers"]["count"], self.job["trainers"]["batch"]
        epoch, place = divmod(step, 40 // (count * batch))
        first = (place * count + self.trainer) * batch
        return self.rows(self.shuffled(40, self.job["seed"], epoch, 0)[first : first + batch], True)

    def held_out(self, share, shares):
        yield self.rows(range(9 * share // shares, 9 * (share + 1) // shares), False)


def split(count=40, held_out=9):
    """At random: the trainers' generators decide, so these must be seeded alike."""
    return data.random_split(Numbers(count + held_out), (count, held_out))


class Stream(data.IterableDataset):
    def __iter__(self):
        return iter(Blobs())


class Wrong(Blobs):
    def __init__(self, what, train=True):
        super().__init__()
        self.what = what

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        if self.what == "raises":
            raise OSError("no sample today")
        if self.what == "alone":
            return image
        if self.what == "bytes":
            return (image * 255).to(torch.uint8), label
        if self.what == "shape":
            return image[:1], label
        if self.what == "list":
            return image.tolist(), label
        return image, float(label)
