"""A word model with an LSTM as PyTorch's examples write it: hidden states carried and detached."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from start import array, filled


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid, nlayers, dropout=0.5):
        super().__init__()
        self.ntoken = ntoken
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers, dropout=dropout)
        self.decoder = nn.Linear(nhid, ntoken)
        self.nhid = nhid
        self.nlayers = nlayers
        self.init_weights()

    def init_weights(self):
        initrange = 0.1
        nn.init.uniform_(self.encoder.weight, -initrange, initrange)
        nn.init.zeros_(self.decoder.bias)
        nn.init.uniform_(self.decoder.weight, -initrange, initrange)

    def forward(self, input, hidden):
        emb = self.drop(self.encoder(input))
        output, hidden = self.rnn(emb, hidden)
        output = self.drop(output)
        decoded = self.decoder(output)
        decoded = decoded.view(-1, self.ntoken)
        return F.log_softmax(decoded, dim=1), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return (weight.new_zeros(self.nlayers, bsz, self.nhid),
                weight.new_zeros(self.nlayers, bsz, self.nhid))


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    data = data.narrow(0, 0, nbatch * bsz)
    data = data.view(bsz, -1).t().contiguous()
    return data.to(device)


def repackage_hidden(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


device = torch.device("cpu")
ntokens, bptt = 11, 5
corpus = torch.from_numpy((abs(array(90, seed=0)) * 10).astype("int64") % ntokens)
train_data = batchify(corpus, 4)
model = filled(torch, RNNModel(ntokens, 6, 8, 2, dropout=0.0), seed=1).to(device)
criterion = nn.NLLLoss()
hidden = model.init_hidden(4)
losses = []
model.train()
for i in range(0, train_data.size(0) - 1, bptt):
    seq_len = min(bptt, len(train_data) - 1 - i)
    data = train_data[i:i + seq_len]
    targets = train_data[i + 1:i + 1 + seq_len].view(-1)
    model.zero_grad()
    hidden = repackage_hidden(hidden)
    output, hidden = model(data, hidden)
    loss = criterion(output, targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(p.grad, alpha=-1.0)
    losses.append(loss.item())
results = {"losses": losses, "perplexity": math.exp(losses[-1]),
           "hidden": hidden[0].detach().numpy()}
