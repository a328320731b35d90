"""A policy as a torch.nn.Module: load_policy imports this where PyTorch is installed."""
import numpy as np
import torch

from .policy import Acting, Network, rows_of


class TorchMath:
    """policy.py's arithmetic. Arrays of NumPy come onto the device of the parameters."""

    tanh, exp, sqrt, relu, sigmoid = torch.tanh, torch.exp, torch.sqrt, torch.relu, torch.sigmoid
    linear = staticmethod(torch.nn.functional.linear)
    clip = staticmethod(torch.clamp)

    def __init__(self, device):
        self.device = device

    def array(self, values):
        return torch.as_tensor(np.asarray(values, np.float32) if not torch.is_tensor(values) else values.float(), device=self.device())

    @staticmethod
    def convolve(x, weight, bias, stride):
        return torch.nn.functional.conv2d(x, weight, bias, stride)

    @staticmethod
    def channels_first(x):
        return x.movedim(-1, 1)

    @staticmethod
    def split(x, count):
        return x.chunk(count, -1)

    @staticmethod
    def join(features):
        return torch.cat(features, 1)

    @staticmethod
    def expand(row, like):
        return row.expand_as(like)


class TorchPolicy(Acting, torch.nn.Module):
    """A policy whose parameters have Stable-Baselines3's names, in state_dict too. forward gives the outputs of a batch of
    observations, with gradients."""

    def __init__(self, tensors, job, environment):
        super().__init__()
        self.job, self.environment, self.random = job, environment, np.random.default_rng(0)
        for name, values in tensors.items():
            self._place(name.split("."), torch.from_numpy(values))
        self.network = Network(TorchMath(self._device), set(tensors), self._find, job, environment)

    def _place(self, path, values):
        module = self
        for name in path[:-1]:
            # add_module refuses a part whose name is that of a method of Module, such as "type"
            module = module._modules.setdefault(name, torch.nn.Module())
        if path[0] == "obs_rms":
            module.register_buffer(path[-1], values)
        else:
            module.register_parameter(path[-1], torch.nn.Parameter(values))

    def _find(self, name):
        *modules, last = name.split(".")
        found = self
        for module in modules:
            found = found._modules[module]
        return getattr(found, last)

    def _device(self):
        return next(self.parameters()).device

    def forward(self, observations, state=None):
        as_it_is = torch.is_tensor(observations) and "parts" not in self.environment["observation"]
        batch = observations if as_it_is else self._batch(observations)[0]
        return self.network.outputs(batch, state or self.network.zero_state(rows_of(batch)))

    def _outputs(self, batch, state):
        with torch.no_grad():
            return {name: values.cpu().numpy() for name, values in self.network.outputs(batch, state).items()}
