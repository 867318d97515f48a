"""A Kalman filter whose noise is learned by the likelihood of what was measured."""

import math

import torch
from start import array

F = torch.tensor([[1.0, 0.1], [0.0, 1.0]])
H = torch.tensor([[1.0, 0.0]])
measured = torch.cumsum(torch.from_numpy(array(25, seed=0, scale=0.2)), dim=0)
log_q = torch.nn.Parameter(torch.tensor(-2.0))
log_r = torch.nn.Parameter(torch.tensor(-1.0))


def run_filter():
    x, P = torch.zeros(2, 1), torch.eye(2)
    G = torch.tensor([[0.005], [0.1]])
    Q, R = log_q.exp() * torch.mm(G, G.t()), log_r.exp().reshape(1, 1)
    nll, states = 0.0, []
    for z in measured:
        x, P = F @ x, F @ P @ F.T + Q
        y = z.view(1, 1) - H.matmul(x)
        S = H.mm(P).mm(H.t()) + R
        K = P @ H.T @ torch.inverse(S)
        x = x + K @ y
        P = (torch.eye(2) - K @ H) @ P
        logdet = torch.linalg.slogdet(S).logabsdet
        nll = nll + 0.5 * (y.t() @ torch.inverse(S) @ y + logdet + math.log(2 * math.pi))
        states.append(x.squeeze(-1))
    return nll.squeeze() / len(measured), torch.stack(states), torch.trace(P)


optimizer = torch.optim.Adam([log_q, log_r], lr=0.1)
losses = []
for _ in range(4):
    optimizer.zero_grad()
    loss, states, spread = run_filter()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
results = {"losses": losses, "states": states.detach().numpy(), "spread": spread.item(),
           "noise": [log_q.item(), log_r.item()]}
