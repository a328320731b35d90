"""The model of a trainer in Python, and how it lies in the row of numbers that travels (worker/net/PROTOCOL.md).

    entries_of, resnet_entries, check_entries   names and shapes: the module's, those of /model, and that they are the same
    Layout                                      where each parameter lies in the row
    resnet_of                                   torchvision's network of /model
    Network                                     the module on that row: gradients and evaluations
"""
import collections
import importlib
import math
import struct

from worker_session import INVALID, UNAVAILABLE, Failure, np

TRAINED, BUFFER, COUNTER = 0, 1, 2
KINDS = {TRAINED: "a parameter", BUFFER: "a buffer", COUNTER: "a counter"}

Entry = collections.namedtuple("Entry", "name kind shape count at")  # at: its first element in the row; None for a counter


class BadBatch(Exception):
    """A batch of the user's that cannot be learned from: what was expected."""


# ---- names and shapes ----
def entries_of(model):
    """The module's entries, (name, kind, shape), in the order of its state_dict."""
    trained = {name for name, _ in model.named_parameters()}
    entries = []
    for name, tensor in model.state_dict().items():
        kind = TRAINED if name in trained else COUNTER if name.endswith("num_batches_tracked") else BUFFER
        entries.append((name, kind, tuple(tensor.shape)))
    return entries


def resnet_entries(job):
    """The entries of the job's /model, which are torchvision's, without torchvision."""
    said, entries = job["model"], []
    expansion, kernels, blocks = {"resnet18": (1, (3, 3), (2, 2, 2, 2)), "resnet50": (4, (1, 3, 1), (3, 4, 6, 3))}[said["name"]]

    def add_convolution(name, norm, outputs, inputs, kernel):
        entries.append((f"{name}.weight", TRAINED, (outputs, inputs, kernel, kernel)))
        entries.extend((f"{norm}.{part}", TRAINED, (outputs,)) for part in ("weight", "bias"))
        entries.extend((f"{norm}.{part}", BUFFER, (outputs,)) for part in ("running_mean", "running_var"))
        entries.append((f"{norm}.num_batches_tracked", COUNTER, ()))

    channels = said["width"]
    add_convolution("conv1", "bn1", channels, job["data"]["channels"], 7)
    for stage, count in enumerate(blocks):
        planes = said["width"] << stage
        for block in range(count):
            before, inputs = f"layer{stage + 1}.{block}", channels
            channels = planes * expansion
            for i, kernel in enumerate(kernels, 1):
                outputs = channels if i == len(kernels) else planes
                add_convolution(f"{before}.conv{i}", f"{before}.bn{i}", outputs, inputs if i == 1 else planes, kernel)
            if block == 0 and (stage > 0 or inputs != channels):
                add_convolution(f"{before}.downsample.0", f"{before}.downsample.1", channels, inputs, 1)
    entries.append(("fc.weight", TRAINED, (said["classes"], channels)))
    entries.append(("fc.bias", TRAINED, (said["classes"],)))
    return entries


def check_entries(entries, expected, name):
    """The first entry that differs from /model's is an error: the servers would refuse the model without naming it."""
    found = {entry[0]: entry for entry in entries}
    for wanted in expected:
        entry = found.pop(wanted[0], None)
        if entry is None:
            raise Failure(INVALID, f"{name}: model: {wanted[0]} is missing: expected {wanted[2]} of /model")
        if entry[2] != wanted[2]:
            raise Failure(INVALID, f"{name}: model: {wanted[0]} is {entry[2]}: expected {wanted[2]} of /model")
        if entry[1] != wanted[1]:
            raise Failure(INVALID, f"{name}: model: {wanted[0]} is {KINDS[entry[1]]}: expected {KINDS[wanted[1]]}, as in /model")
    for surplus, _, shape in found.values():
        raise Failure(INVALID, f"{name}: model: {surplus}, {shape}, is not in /model")
    for entry, wanted in zip(entries, expected):
        if entry != wanted:
            raise Failure(INVALID, f"{name}: model: {entry[0]} comes where /model has {wanted[0]}: expected PyTorch's order")


# ---- the model as one row of numbers ----
class Layout:
    """The image of PROTOCOL.md: P elements of parameters, B of running statistics behind them."""

    def __init__(self, said):
        self.fingerprint = self._fingerprint(said)
        places = {}
        self.parameters = self._place(said, TRAINED, 0, places)
        self.elements = self._place(said, BUFFER, self.parameters, places)
        self.entries = [Entry(name, kind, shape, math.prod(shape), places.get(name)) for name, kind, shape in said]

    @staticmethod
    def _place(said, kind, at, places):
        """Places the entries of this kind from `at` on, each at a multiple of 16; where they end."""
        for name, its_kind, shape in said:
            if its_kind == kind:
                places[name] = at
                at += -(-math.prod(shape) // 16) * 16
        return at

    @staticmethod
    def _fingerprint(said):
        h = 0xCBF29CE484222325
        for name, kind, shape in said:
            for byte in name.encode() + b"\0" + struct.pack(f"<{2 + len(shape)}IQ", kind, len(shape), *shape, 0):
                h = ((h ^ byte) * 0x100000001B3) % 2**64
        return h

    def ranges(self, servers):
        """Of each server: the ranges of the row that it has, as pairs of first and end."""
        begins = [entry.at for entry in self.entries if entry.kind == TRAINED]
        cuts, at = [0], 0
        for j in range(1, servers):
            candidates = range(at + 1, len(begins) - (servers - j) + 1)
            at = min(candidates, key=lambda i: (abs(begins[i] * servers - j * self.parameters), i))
            cuts.append(begins[at])
        cuts.append(self.parameters)
        ranges = [[(cuts[j], cuts[j + 1])] for j in range(servers)]
        ranges[0].append((self.parameters, self.elements))
        return ranges


# ---- the network ----
def resnet_of(job):
    """torchvision's network with the job's classes, channels, and width of the first stage."""
    resnet = importlib.import_module("torchvision.models.resnet")
    nn = importlib.import_module("torch.nn")
    said, channels = job["model"], job["data"]["channels"]
    width, block = said["width"], {"resnet18": resnet.BasicBlock, "resnet50": resnet.Bottleneck}[said["name"]]

    class ResNet(resnet.ResNet):
        def _make_layer(self, block, planes, *rest, **more):
            if planes == 64:  # the first stage, behind the stem
                self.inplanes = width
            return super()._make_layer(block, planes * width // 64, *rest, **more)

    model = ResNet(block, [2, 2, 2, 2] if said["name"] == "resnet18" else [3, 4, 6, 3])
    model.conv1 = nn.Conv2d(channels, width, kernel_size=7, stride=2, padding=3, bias=False)
    model.bn1 = nn.BatchNorm2d(width)
    model.fc = nn.Linear(8 * width * block.expansion, said["classes"])
    return model


class Network:
    """The model. Its parameters lie in the row `values`, their gradients in the row `contribution`, as the servers have
    them; on a GPU both rows are copied whole."""

    def __init__(self, job, model, beat):
        self.torch = importlib.import_module("torch")
        self.job, self.model, self.beat = job, model, beat
        self.layout = Layout(entries_of(model))
        on_gpu = job["device"] == "gpu" or (job["device"] == "auto" and self.torch.cuda.is_available())
        if on_gpu and not self.torch.cuda.is_available():
            raise Failure(UNAVAILABLE, "/device is gpu, and PyTorch finds none that works")
        self.device = self.torch.device("cuda" if on_gpu else "cpu")
        # A successor computes a step again: the same numbers, in whole float32.
        self.torch.backends.cudnn.deterministic = True
        self.torch.backends.cudnn.allow_tf32 = self.torch.backends.cuda.matmul.allow_tf32 = False
        self.values = np.zeros(self.layout.elements, np.float32)
        self.contribution = np.zeros(self.layout.elements, np.float32)
        model.to(self.device)
        self.rows = [self._row(row) for row in (self.values, self.contribution)]
        self._lay_out()
        for module in model.modules():
            if isinstance(module, self.torch.nn.modules.batchnorm._BatchNorm):
                module.momentum = 1.0  # the buffers become the batch's own mean and unbiased variance
            if not list(module.children()):
                module.register_forward_hook(lambda *_: beat())
        for parameter in model.parameters():
            if parameter.requires_grad:  # a frozen one contributes zeros
                parameter.register_hook(lambda gradient: beat())

    def _row(self, row):
        """The row on the device; on the CPU it is the same memory."""
        row = self.torch.from_numpy(row)
        return row if self.device.type == "cpu" else row.to(self.device)

    def _part(self, row, entry):
        return row[entry.at : entry.at + entry.count].view(entry.shape)

    def _lay_out(self):
        """Has parameters, gradients and running statistics lie in the rows."""
        values, contribution = self.rows
        parameters, buffers = dict(self.model.named_parameters()), dict(self.model.named_buffers())
        self.statistics = []  # pairs: the module's buffer, where a version has it
        for entry in self.layout.entries:
            if entry.kind == TRAINED:
                parameters[entry.name].data = self._part(values, entry)
                if parameters[entry.name].requires_grad:
                    parameters[entry.name].grad = self._part(contribution, entry)
            elif entry.kind == BUFFER:
                buffers[entry.name].data = self._part(contribution, entry)
                self.statistics.append((buffers[entry.name], self._part(values, entry)))

    def take(self):
        """Computes with what `values` holds from now on."""
        if self.device.type != "cpu":
            self.rows[0].copy_(self.torch.from_numpy(self.values))

    def _batch(self, batch):
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise BadBatch(f"it is a {type(batch).__name__}: expected a pair of images and labels")
        images, labels = batch
        images, labels = self.torch.as_tensor(images), self.torch.as_tensor(labels)
        if images.dim() != 4 or images.dtype != self.torch.float32 or labels.shape != images.shape[:1]:
            raise BadBatch(f"its images are {images.dtype} {tuple(images.shape)} and its labels {tuple(labels.shape)}: "
                           "expected float32 (n, channels, height, width) and (n,)")  # fmt: skip
        classes = self.job["model"]["classes"]
        if labels.is_floating_point() or len(labels) == 0 or labels.min() < 0 or labels.max() >= classes:
            shown = f"{labels.min()} to {labels.max()}, {labels.dtype}" if len(labels) > 0 else "none"
            raise BadBatch(f"its labels are {shown}: expected at least one, each a whole number in 0..{classes - 1}")
        return images.to(self.device), labels.to(self.device, self.torch.int64)

    def _losses(self, outputs, labels):
        """Each sample's loss."""
        functional = self.torch.nn.functional
        if self.job["loss"]["name"] == "cross_entropy":
            return functional.cross_entropy(outputs, labels, reduction="none")
        wanted = functional.one_hot(labels, outputs.shape[1]).to(outputs.dtype)
        return ((outputs - wanted) ** 2).mean(1)

    def compute(self, batch):
        """Writes the batch's gradient and statistics into `contribution`; its loss."""
        images, labels = self._batch(batch)
        if len(labels) != self.job["trainers"]["batch"]:
            raise BadBatch(f"it has {len(labels)} samples: expected /trainers/batch, {self.job['trainers']['batch']}")
        self.model.train()
        self.rows[1].zero_()
        loss = self._losses(self.model(images), labels).mean()
        loss.backward()
        if self.device.type != "cpu":
            self.torch.from_numpy(self.contribution).copy_(self.rows[1])
        loss = float(loss.detach())
        if not math.isfinite(loss):
            raise BadBatch(f"the loss is {loss}: expected a finite number")
        return loss

    def evaluate(self, batches, tell=lambda count: None):
        """Over all samples of these batches: the sum of their losses, how many are classified rightly, how many they
        are. `tell` is called with the number so far."""
        total, right, count = 0.0, 0, 0
        for buffer, values in self.statistics:
            buffer.copy_(values)
        self.model.eval()
        with self.torch.no_grad():
            for batch in batches:
                images, labels = self._batch(batch)
                outputs = self.model(images)
                total += float(self._losses(outputs, labels).double().sum())
                right += int((outputs.argmax(1) == labels).sum())
                count += len(labels)
                tell(count)
                self.beat()
        return total, right, count
