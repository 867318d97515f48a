"""Deep Q-learning on a chain of states: replay memory, target network, gathered values."""

import random
from collections import deque, namedtuple

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from start import filled

Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))
BATCH_SIZE, GAMMA, TAU, N = 16, 0.9, 0.1, 6
random.seed(0)


class DQN(nn.Module):
    def __init__(self, n_observations, n_actions):
        super().__init__()
        self.layer1 = nn.Linear(n_observations, 16)
        self.layer2 = nn.Linear(16, n_actions)

    def forward(self, x):
        return self.layer2(F.relu(self.layer1(x)))


policy_net, target_net = filled(torch, DQN(N, 2), seed=1), DQN(N, 2)
target_net.load_state_dict(policy_net.state_dict())
optimizer = optim.AdamW(policy_net.parameters(), lr=1e-2, amsgrad=True)
memory = deque([], maxlen=200)


def state(k):
    return F.one_hot(torch.tensor([k]), N).float()


def select_action(s):
    if random.random() < 0.2:
        return torch.tensor([[random.randrange(2)]], dtype=torch.long)
    with torch.no_grad():
        return policy_net(s).argmax(1).view(1, 1)


def optimize_model():
    if len(memory) < BATCH_SIZE:
        return None
    batch = Transition(*zip(*random.sample(memory, BATCH_SIZE)))
    non_final_mask = torch.tensor([s is not None for s in batch.next_state], dtype=torch.bool)
    non_final_next = torch.cat([s for s in batch.next_state if s is not None])
    state_batch = torch.cat(batch.state)
    action_batch = torch.cat(batch.action)
    reward_batch = torch.cat(batch.reward)
    values = policy_net(state_batch).gather(1, action_batch)
    next_values = torch.zeros(BATCH_SIZE)
    with torch.no_grad():
        next_values[non_final_mask] = target_net(non_final_next).amax(1)
    expected = (next_values * GAMMA) + reward_batch
    criterion = nn.SmoothL1Loss()
    loss = criterion(values, expected.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()
    target_state, policy_state = target_net.state_dict(), policy_net.state_dict()
    for key in policy_state:
        target_state[key] = policy_state[key] * TAU + target_state[key] * (1 - TAU)
    target_net.load_state_dict(target_state)
    return loss.item()


losses, position = [], 2
for _ in range(40):
    action = select_action(state(position))
    moved = position + (1 if action.item() else -1)
    reward = torch.tensor([1.0 if moved == N - 1 else -0.05])
    done = moved in (-1, N - 1)
    memory.append(Transition(state(position), action, None if done else state(moved), reward))
    position = 2 if done else moved
    loss = optimize_model()
    if loss is not None:
        losses.append(loss)
q = policy_net(torch.eye(N)).detach()
results = {"losses": losses, "q": q.numpy(), "best": q.argmax(dim=1).tolist()}
