"""Classes for /trainers/class, for test/daemon/test_python_trainer.sh."""
import numpy as np


class Stripes:
    """Bright rows or bright columns, of any size: what a ResNet tells apart within a few updates."""

    def __init__(self, job, trainer, size=24):
        self.job, self.trainer, self.size = job, trainer, size

    def batch(self, step):
        rng = np.random.default_rng([self.job["seed"], self.trainer, step])
        count = self.job["trainers"]["batch"]
        labels = rng.integers(0, 2, count)
        images = rng.normal(size=(count, self.job["data"]["channels"], self.size, self.size)).astype(np.float32)
        images[labels == 0, :, ::2] += 2
        images[labels == 1, :, :, ::2] += 2
        return images, labels


class Own(Stripes):
    """Brings its model along."""

    def model(self):
        import torchvision

        return torchvision.models.resnet18(num_classes=10)


class Frozen(Stripes):
    """Its first layer is not trained."""

    def model(self):
        import torchvision

        model = torchvision.models.resnet18(num_classes=10)
        model.conv1.weight.requires_grad_(False)
        return model


class Wrong(Stripes):
    def __init__(self, job, trainer, what):
        super().__init__(job, trainer)
        self.what = what

    def batch(self, step):
        images, labels = super().batch(step)
        if self.what == "raises":
            raise OSError("no batch today")
        if self.what == "none":
            return None
        if self.what == "rank":
            return images[0], labels
        if self.what == "label":
            return images, labels + 9
        if self.what == "dtype":
            return images, labels.astype(np.float32)
        if self.what == "size":
            return images[:7], labels[:7]
        if self.what == "nan":
            return images * np.float32("nan"), labels
        return images, labels


class WrongModel(Wrong):
    def model(self):
        import torch
        import torchvision

        model = torchvision.models.resnet18(num_classes=11 if self.what == "model" else 10)
        if self.what == "lacks":
            model.fc = torch.nn.Identity()
        if self.what == "surplus":
            model.register_parameter("scale", torch.nn.Parameter(torch.ones(3)))
        if self.what == "width":
            model.conv1 = torch.nn.Conv2d(3, 32, kernel_size=7, bias=False)
        if self.what == "buffer":
            del model.fc.bias
            model.fc.register_buffer("bias", torch.zeros(10))
        if self.what == "order":
            weight = model.fc._parameters.pop("weight")
            model.fc._parameters["weight"] = weight
        return None if self.what == "module" else model


class Sized(Stripes):
    """Says how many samples there are. Trainer `other` says another number; a share may be too short."""

    def __init__(self, job, trainer, train=36, held=11, other=None, short=0):
        super().__init__(job, trainer, job["data"]["size"])
        self.train_size, self.held_out_size, self.short = train, held, short
        if other == trainer:
            self.train_size += 4

    def held_out(self, share, shares):
        first, end = (self.held_out_size * i // shares for i in (share, share + 1))
        for at in range(first, end - self.short, 3):
            rng = np.random.default_rng([7, at])
            count = min(3, end - self.short - at)
            images = rng.normal(size=(count, self.job["data"]["channels"], self.size, self.size)).astype(np.float32)
            yield images, rng.integers(0, 10, count)
