"""A network whose layers are products of a library, for scripts: nothing of it is compiled to C++."""

PRODUCTS = """
import torch
from torch import nn
from torch._dynamo.utils import counters
from shoestring.core.train_section import Train
from shoestring.models.language_model import LanguageModel, Output
from shoestring.models.layers.blocks import Block, run
from shoestring.training.learner import Learner

class Product(Block):
    dropout = 0.0

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(8))

    def forward(self, x):
        return x @ self.weight

class Products(LanguageModel):
    def __init__(self):
        super().__init__()
        self.embedding, self.blocks = nn.Embedding(20, 8), nn.ModuleList(Product() for _ in range(3))

    def hidden(self, inputs):
        x = self.embedding(inputs.ids)
        for block in self.blocks:
            x = run(block, x)
        return x

    def output(self):
        return Output(self.embedding.weight)

    def parameter_groups(self):
        return {"all": list(self.parameters())}
"""
