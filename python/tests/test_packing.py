"""pack: the same module in other memory. Needs PyTorch: bench/merge/run makes an environment that has it, and
Debian has PyTorch 1 (python3-torch, python3-pytest)."""

import copy
import io
import mmap

import pytest

torch = pytest.importorskip("torch")

import mayfly  # noqa: E402
from mayfly.packing import storage_of  # noqa: E402
from mayfly.regions import regions_of, whole_pages  # noqa: E402

nn = torch.nn


class Everything(nn.Module):
    """Tied weights, views, odd types and strides, a buffer, something empty, something without gradient."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(300, 128)
        self.head = nn.Linear(128, 300, bias=False)
        self.head.weight = self.embed.weight
        self.conv = nn.Conv2d(3, 64, 5).to(memory_format=torch.channels_last)
        self.coarse = nn.Linear(33, 77).to(torch.bfloat16)
        whole = torch.randn(100, 200)
        self.upper, self.lower = nn.Parameter(whole[:60]), nn.Parameter(whole[60:])
        self.turned = nn.Parameter(torch.randn(70, 90).t())
        self.norm = nn.BatchNorm1d(128)
        self.register_buffer("mask", torch.ones(40, 40).tril().bool())
        self.register_buffer("nothing", torch.empty(0, 5))
        self.register_buffer(
            "tail", torch.arange(1e6)[999_001:]
        )  # the rest of its storage is not the module's
        self.frozen = nn.Parameter(torch.randn(3, 3), requires_grad=False)

    def forward(self, tokens, image):
        text = self.head(self.norm(self.embed(tokens)))
        return (
            text,
            self.conv(image),
            self.coarse(image.flatten()[:33].to(torch.bfloat16)),
            self.turned @ self.turned.t(),
        )


@pytest.fixture
def module():
    torch.manual_seed(1)
    return Everything().eval()


def test_the_same_module_afterwards(module):
    inputs = torch.arange(50), torch.randn(1, 3, 16, 16)
    before, state = module(*inputs), copy.deepcopy(module.state_dict())
    objects = {name: one for name, one in [*module.named_parameters(), *module.named_buffers()]}
    kinds = {n: (p.dtype, p.stride(), p.requires_grad, p.is_contiguous()) for n, p in objects.items()}
    assert mayfly.pack(module) is module
    for name, one in [*module.named_parameters(), *module.named_buffers()]:
        assert one is objects[name]
        assert (one.dtype, one.stride(), one.requires_grad, one.is_contiguous()) == kinds[name]
    after = module.state_dict()
    assert list(after) == list(state)
    assert all(torch.equal(after[name], state[name]) for name in state)
    for old, new in zip(before, module(*inputs), strict=True):
        assert old.detach().contiguous().view(torch.uint8).equal(new.detach().contiguous().view(torch.uint8))


def test_everything_lies_in_one_run_of_whole_pages(module):
    used = sum(p.numel() * p.element_size() for p in {p.data_ptr(): p for p in module.parameters()}.values())
    mayfly.pack(module)
    regions = sorted(regions_of(module))
    first, last = regions[0].start, regions[-1].end
    assert first % mmap.PAGESIZE == 0
    assert last - first < used * 1.1 + 10 * mmap.PAGESIZE
    assert sum(page.size_bytes for page in whole_pages(regions)) > 0.85 * used


def test_tied_weights_and_views_stay_tied(module):
    mayfly.pack(module)
    with torch.no_grad():
        module.embed.weight[7, 5] = 42
        module.upper[59, 199] = 43
    assert module.head.weight[7, 5] == 42
    assert module.lower.data_ptr() == module.upper.data_ptr() + 60 * 200 * 4
    assert storage_of(module.upper).data_ptr() == storage_of(module.lower).data_ptr()


def test_two_instances_have_the_same_layout():
    places = []
    for _ in range(2):
        torch.manual_seed(3)
        module = mayfly.pack(Everything())
        base = min(p.data_ptr() for p in module.parameters())
        places.append([p.data_ptr() - base for p in module.parameters()])
    assert places[0] == places[1]


def test_training_goes_on(module):
    twin = copy.deepcopy(module)
    mayfly.pack(module)
    for one in (module, twin):
        optimizer = torch.optim.Adam(one.parameters(), lr=0.1)
        one.turned.sum().backward()
        one.embed.weight.square().sum().backward()
        optimizer.step()
    assert torch.equal(module.turned, twin.turned)
    assert torch.equal(module.head.weight, twin.head.weight)


def test_saving_one_tensor_saves_no_arena(module):
    mayfly.pack(module)
    file = io.BytesIO()
    torch.save(module.frozen, file)
    assert len(file.getvalue()) < 4096


def test_packing_twice_and_copying(module):
    state = copy.deepcopy(module.state_dict())
    mayfly.pack(mayfly.pack(module))
    copied = copy.deepcopy(module)
    del module
    assert all(torch.equal(copied.state_dict()[name], state[name]) for name in state)


def test_refusals():
    with pytest.raises(TypeError, match="not a Tensor"):
        mayfly.pack(torch.ones(3))
    with pytest.raises(ValueError, match="not initialised"):
        mayfly.pack(nn.LazyLinear(3))
    with pytest.raises(ValueError, match="on meta"):
        list(regions_of(torch.ones(3, device="meta")))
    with pytest.raises(ValueError, match="on meta"):
        list(regions_of(nn.Linear(3, 3, device="meta")))
    assert list(regions_of(nn.ReLU())) == []


def test_sparse_tensors_by_their_parts():
    dense = torch.zeros(100, 100)
    dense[5, 7] = dense[90, 3] = 1
    assert len(list(regions_of(dense.to_sparse()))) == 2
    assert len(list(regions_of(dense.to_sparse_csr()))) == 3


def test_views_of_tensors():
    base = torch.arange(10000.0)
    (region,) = regions_of(base[100:200:3])
    assert region.start == base.data_ptr() + 400
    assert region.size_bytes == (33 * 3 + 1) * 4
