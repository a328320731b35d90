"""The sizes of the peer's language models, and the model in one process."""
import torch

# tokens, embedding, hidden, layers, length of a sequence, sequences
SIZES = {"tutorial": (10, 2, 3, 4, 5, 3), "job": (10000, 200, 200, 2, 35, 20)}


class Model(torch.nn.Module):
    def __init__(self, tokens, embedding, hidden, layers, dropout):
        super().__init__()
        self.drop = torch.nn.Dropout(dropout)
        self.encoder = torch.nn.Embedding(tokens, embedding)
        self.rnn = torch.nn.LSTM(embedding, hidden, layers, dropout=dropout)
        self.decoder = torch.nn.Linear(hidden, tokens)
        self.encoder.weight.data.uniform_(-0.1, 0.1)
        self.decoder.weight.data.uniform_(-0.1, 0.1)
        self.decoder.bias.data.zero_()

    def forward(self, data, state):
        output, state = self.rnn(self.drop(self.encoder(data)), state)
        return self.decoder(self.drop(output)), state

    def zero_state(self, columns):
        return tuple(torch.zeros(self.rnn.num_layers, columns, self.rnn.hidden_size) for _ in "hc")
