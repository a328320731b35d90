"""Narrow ResNets of torchvision, and their weights. Shared by resnet.py and parameter_server.py."""
import torch
import torchvision
from problem import bound


def narrow_resnet(depth, width, classes):
    """torchvision's ResNet-18 or ResNet-50 with `width` channels in the first stage, and so on."""
    resnet = torchvision.models.resnet

    class Narrow(resnet.ResNet):
        def _make_layer(self, block, planes, *rest, **options):
            if planes == 64:
                self.inplanes = width
            return super()._make_layer(block, planes * width // 64, *rest, **options)

    block, layers = {18: (resnet.BasicBlock, [2, 2, 2, 2]), 50: (resnet.Bottleneck, [3, 4, 6, 3])}[depth]
    model = Narrow(block, layers, num_classes=classes)
    model.conv1 = torch.nn.Conv2d(3, width, 7, 2, 3, bias=False)
    model.bn1 = torch.nn.BatchNorm2d(width)
    model.fc = torch.nn.Linear(8 * width * block.expansion, classes)
    return model


def load_resnet(model, draw, last):
    """Draws the weights; `last` is how the name of a block's last batch norm's weight ends. Biases up to 3 leave fewer
    inputs of ReLUs near 0."""
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.data = draw.take(*parameter.shape) * bound(6, parameter[0].numel())
        elif name.endswith("bias"):
            parameter.data = draw.take(*parameter.shape) * torch.tensor(3.0)
        else:
            parameter.data = torch.full(parameter.shape, 0.1 if name.endswith(last) else 1.0)
