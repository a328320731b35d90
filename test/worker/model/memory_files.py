"""Loads a checkpoint of a policy with memory into PyTorch's modules, for test_memory_files.sh.

    memory_files.py CHECKPOINT CELL UNITS LAYERS CRITIC

The policy is of one hidden layer, as sb3-contrib's RecurrentActorCriticPolicy has its modules; a GRU's names begin with
gru. CRITIC is own, detached, linear, or shared, where value and policy share the hidden layer too. model.safetensors
must load with load_state_dict(strict=True), and the recurrent layers once more by themselves. The moments of
optimizer.safetensors become a state of torch.optim.Adam, which takes a step.

Needs PyTorch of Debian, and safetensors of PyPI (scripts/deps python).

Exit: 0 loaded, 1 not, 77 not run, with a line that says why.
"""
import json
import sys

try:
    import torch
    from safetensors.torch import load_file
except ImportError as missing:
    print(f"PyTorch is not run: {missing} (scripts/deps python installs what it needs)")
    sys.exit(77)

CELLS = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}


def module_of(weights, cell, units, layers, critic):
    """The sizes of observations, hidden layer and actions are those of the weights."""
    inputs = weights[f"{cell}_actor.weight_ih_l0"].shape[1]
    actions, hidden = weights["action_net.weight"].shape
    names = ["shared_net"] if critic == "shared" else ["policy_net", "value_net"]
    modules = {
        "mlp_extractor": torch.nn.ModuleDict({name: torch.nn.Sequential(torch.nn.Linear(units, hidden)) for name in names}),
        "action_net": torch.nn.Linear(hidden, actions),
        "value_net": torch.nn.Linear(hidden, 1),
        f"{cell}_actor": CELLS[cell](inputs, units, layers),
    }
    if critic == "own":
        modules[f"{cell}_critic"] = CELLS[cell](inputs, units, layers)
    elif critic == "linear":
        modules["critic"] = torch.nn.Linear(inputs, units)
    module = torch.nn.Module()
    for name, child in modules.items():
        module.add_module(name, child)
    return module


def load_alone(weights, module, cell):
    """The recurrent layers by themselves, from the keys behind the first dot."""
    for name in (f"{cell}_actor", f"{cell}_critic"):
        keys = {key[len(name) + 1 :]: value for key, value in weights.items() if key.startswith(name + ".")}
        layers = getattr(module, name, None)
        if layers is None and keys:
            sys.exit(f"{name} is not expected")
        if layers is not None:
            CELLS[cell](layers.input_size, layers.hidden_size, layers.num_layers).load_state_dict(keys, strict=True)


def step(module, moments, steps):
    """Adam goes on from the moments, all of which are used."""
    adam = torch.optim.Adam(module.parameters(), lr=0.01)
    state = adam.state_dict()
    for index, (name, parameter) in enumerate(module.named_parameters()):
        found = {moment: moments.pop(f"{name}.{moment}") for moment in ("exp_avg", "exp_avg_sq")}
        if any(value.shape != parameter.shape for value in found.values()):
            sys.exit(f"the moments of {name} have other shapes")
        state["state"][index] = {"step": torch.tensor(float(steps))} | found
    adam.load_state_dict(state)
    sum(parameter.sum() for parameter in module.parameters()).backward()
    adam.step()
    if moments:
        sys.exit(f"nobody has these moments: {sorted(moments)}")


def main(checkpoint, cell, units, layers, critic):
    weights = load_file(f"{checkpoint}/model.safetensors")
    module = module_of(weights, cell, int(units), int(layers), critic)
    module.load_state_dict(weights, strict=True)
    load_alone(weights, module, cell)
    with open(f"{checkpoint}/manifest.json", encoding="ascii") as file:
        steps = json.load(file)["steps"][0]
    step(module, load_file(f"{checkpoint}/optimizer.safetensors"), steps)


main(*sys.argv[1:])
