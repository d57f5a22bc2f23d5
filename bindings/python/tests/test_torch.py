"""What PyTorch saves for the backward pass on a tape: the gradients are the same, bit by bit."""

import gc
import os
import weakref

import pytest
from documented import code_of

if not os.environ.get("OUTCROP_TEST_ALL"):
    pytest.importorskip("torch")

import torch
from torch import nn

from outcrop.torch import saved_tensors

HOST = {"host": "4 MiB", "pin": False}


@pytest.fixture
def tape(tmp_path):
    """A tape with little memory, so that most goes to its directory and back."""
    return {**HOST, "dir": {"path": str(tmp_path), "limit": "256 MiB"}}


class Block(nn.Module):
    """Attention, convolution with another memory format, and what else keeps tensors of all kinds for its gradient."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.convolution = nn.Conv2d(1, 3, 3, padding=1)
        self.out = nn.Linear(3 * width, width)

    def forward(self, x):
        x = x + self.attention(self.norm(x), x, x, need_weights=False)[0]
        image = self.convolution(x.unsqueeze(1).contiguous(memory_format=torch.channels_last))
        image = torch.relu(image).permute(0, 2, 3, 1).reshape(*x.shape[:2], -1)
        return torch.tanh(self.out(image)) * x.mean(0, keepdim=True).expand_as(x)


def model_and_batch():
    torch.manual_seed(1)
    return nn.Sequential(*[Block(64) for _ in range(4)]), torch.randn(8, 96, 64, requires_grad=True)


def gradients(model, batch):
    return [batch.grad.clone(), *(parameter.grad.clone() for parameter in model.parameters())]


def same(found, expected):
    assert len(found) == len(expected)
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Sums of several threads may be rounded differently from one run to the next."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def expected():
    model, batch = model_and_batch()
    model(batch).square().sum().backward()
    return gradients(model, batch)


def test_the_gradient_of_a_model(tape, expected):
    model, batch = model_and_batch()
    with saved_tensors(smallest_bytes=1024, **tape) as on_tape:
        loss = model(batch).square().sum()
    stats = on_tape.stats()
    assert stats["saves"] > 20
    assert stats["layers"][1]["written_bytes"] > 1 << 20
    loss.backward()
    assert same(gradients(model, batch), expected)
    # The graph has let go of everything.
    assert on_tape.keys() == []
    for name, parameter in model.named_parameters():
        assert parameter.grad.is_contiguous(), name


def test_twice_with_a_graph_that_is_kept(tape, expected):
    model, batch = model_and_batch()
    with saved_tensors(smallest_bytes=1024, **tape) as on_tape:
        loss = model(batch).square().sum()
        loss.backward(retain_graph=True)
        assert same(gradients(model, batch), expected)
        assert on_tape.keys() != []
        model.zero_grad()
        batch.grad = None
        loss.backward()
    assert same(gradients(model, batch), expected)
    assert on_tape.keys() == []


def test_a_graph_that_is_dropped_leaves_nothing(tape):
    model, batch = model_and_batch()
    with saved_tensors(smallest_bytes=1024, **tape) as on_tape:
        loss = model(batch).square().sum()
        assert on_tape.keys() != []
        del loss
        gc.collect()
        assert on_tape.keys() == []


def test_a_gradient_of_a_gradient(tape):
    def second(x):
        y = (x.sin() * x.exp()).sum()
        (first,) = torch.autograd.grad(y, x, create_graph=True)
        (first * first).sum().backward()
        return x.grad

    start = torch.linspace(-1, 1, 50_000, dtype=torch.float64)
    expected = second(start.clone().requires_grad_())
    with saved_tensors(**tape) as on_tape:
        found = second(start.clone().requires_grad_())
        assert on_tape.stats()["saves"] > 0
    assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.complex64])
@pytest.mark.parametrize("made", ["plain", "transposed", "strided", "expanded", "conjugate", "channels last"])
def test_every_kind_of_tensor_comes_back_as_it_was(dtype, made, tape):
    base = torch.randn(6, 8, 10, 12).to(dtype)
    tensor = {
        "plain": base,
        "transposed": base.transpose(0, 3).transpose(1, 2),
        "strided": base[:, ::2, :, 3:],
        "expanded": base[:, :1].contiguous().expand(6, 8, 10, 12),
        "conjugate": base.conj(),
        "channels last": base.contiguous(memory_format=torch.channels_last),
    }[made]
    seen = []

    class Saves(torch.autograd.Function):
        @staticmethod
        def forward(context, x, y):
            context.save_for_backward(y)
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            seen.extend(context.saved_tensors)
            return gradient, None

    x = torch.ones(1, requires_grad=True)
    with saved_tensors(smallest_bytes=0, **tape) as on_tape:
        Saves.apply(x, tensor).sum().backward()
        assert on_tape.stats()["saves"] == 1
    (found,) = seen
    assert torch.equal(found, tensor) and found.dtype == tensor.dtype
    if made != "strided":
        assert found.stride() == tensor.stride()


def test_what_stays_in_memory(tape):
    weight = nn.Parameter(torch.randn(300, 300))
    x = torch.randn(300, 300, requires_grad=True)
    small = torch.randn(4, requires_grad=True)
    with saved_tensors(**tape) as on_tape:
        # A parameter, a leaf, a view of one, and few bytes.
        ((weight * x).sum() + (weight.t() @ x).sum() + small.exp().sum()).backward()
        assert on_tape.stats()["saves"] == 0
        # One tensor that two operations save is saved once.
        y = x + 1
        (y * y).sum().backward()
        assert on_tape.stats()["saves"] == 1
        # But not if it was changed in between: then it is another one.
        y = x + 1
        z = y.sin()
        y.add_(1)
        (gradient,) = torch.autograd.grad((z + y.sin()).sum(), x)
        assert on_tape.stats()["saves"] == 3
    assert torch.allclose(gradient, (x + 1).cos() + (x + 2).cos(), atol=1e-5)
    assert torch.equal(small.grad, small.detach().exp())


def test_what_stays_in_memory_does_not_stay_for_ever(tape):
    """An operation that saves its own result must not keep itself alive."""

    class Marked(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.mark = marks[0]
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            return gradient

    class Mark:
        pass

    marks = [Mark()]
    is_alive = weakref.ref(marks[0])
    with saved_tensors(**tape):
        result = Marked.apply(torch.ones(4, requires_grad=True)).exp()
    marks.clear()
    assert is_alive() is not None
    del result
    assert is_alive() is None


def test_one_in_another(tape, tmp_path):
    """The inner one has what is computed within."""
    x = torch.randn(200, 200, requires_grad=True)
    expected = torch.autograd.grad(((x + 1).sin().exp() * x).sum(), x)
    with saved_tensors(**tape) as outer:
        y = (x + 1).sin()
        with saved_tensors(**HOST) as inner:
            z = y.exp()
        loss = (z * x).sum()
    assert (outer.stats()["saves"], inner.stats()["saves"]) == (2, 1)
    assert torch.equal(torch.autograd.grad(loss, x)[0], expected[0])
    assert outer.keys() == inner.keys() == []


def test_a_training_loop(tape):
    def train(context):
        model, batch = model_and_batch()
        optimizer = torch.optim.Adam(model.parameters())
        with context:
            for _ in range(3):
                optimizer.zero_grad()
                model(batch).square().sum().backward()
                optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]

    assert same(train(saved_tensors(**tape)), train(torch.enable_grad()))


def test_the_code_of_the_documentation(run):
    printed = run(code_of("PyTorch: what the backward pass needs"))
    assert "tensors on the tape; [] are left" in printed and not printed.startswith("0 ")
