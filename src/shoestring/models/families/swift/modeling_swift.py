# mypy: ignore-errors
"""A Swift of Shoestring as a model of transformers, which needs nothing but torch and transformers.

    AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)

Shapes: R rows, T new positions, S positions with those before, D width, H heads, K heads of keys and values, C channels
per head.
"""

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicCache, DynamicLayer
from transformers.modeling_outputs import CausalLMOutputWithPast


class SwiftConfig(PretrainedConfig):
    """The fields of `[model]` in a recipe, under the names of transformers where it has such a field."""

    model_type = "shoestring_swift"

    def __init__(
        self,
        vocab_size=256,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=128,
        max_position_embeddings=256,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        rotary_scaling=None,
        frequencies=(),
        parts="none",
        pairs=0,
        pointer=0,
        window=None,
        full_every=4,
        tied=True,
        **others,
    ):
        self.vocab_size, self.hidden_size, self.num_hidden_layers = vocab_size, hidden_size, num_hidden_layers
        self.num_attention_heads, self.num_key_value_heads = num_attention_heads, num_key_value_heads
        self.intermediate_size, self.max_position_embeddings = intermediate_size, max_position_embeddings
        self.rms_norm_eps, self.rope_theta, self.rotary_scaling = rms_norm_eps, rope_theta, rotary_scaling
        self.frequencies, self.parts, self.tied = list(frequencies), parts, tied
        self.pairs = pairs  # rows of the table for pairs of tokens; 0 without one
        self.pointer = pointer  # channels of a pointer's queries and keys; 0 without one
        self.window, self.full_every = window, full_every
        super().__init__(**others)

    @property
    def part_names(self):
        return {part.strip().partition(":")[0] for part in self.parts.split(",")} - {"none"}

    @property
    def cap(self):
        """The soft cap of the logits; None: there is none."""
        return float(self.number_of("soft_cap") or 15) if "soft_cap" in self.part_names else None

    def number_of(self, name):
        """What follows the name of a part, if it has a number."""
        return next(part.partition(":")[2] for part in self.parts.split(",") if part.strip().startswith(name))

    @property
    def positions_before(self):
        """How many positions before its own a convolution reads; 0 without convolutions."""
        return int(self.number_of("convolutions") or 3) if "convolutions" in self.part_names else 0

    @property
    def value_layers(self):
        """The layers that add value embeddings: every second one, the last among them."""
        last = self.num_hidden_layers - 1
        layers = range(self.num_hidden_layers) if "value_embeddings" in self.part_names else ()
        return [layer for layer in layers if (last - layer) % 2 == 0]


class Norm(nn.Module):
    def __init__(self, config, channels):
        super().__init__()
        self.eps, self.channels = config.rms_norm_eps, channels
        self.weight = nn.Parameter(torch.ones(channels)) if "gains" in config.part_names else None

    def forward(self, x):
        gains = None if self.weight is None else self.weight.float()
        return F.rms_norm(x.float(), (self.channels,), gains, self.eps).to(x.dtype)


class Weight(nn.Module):
    """A parameter with a name of its own."""

    def __init__(self, *shape):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape))


class Pointer(nn.Module):
    """Tokens may be taken from those that followed earlier positions like the one before."""

    def __init__(self, config):
        super().__init__()
        d = config.hidden_size
        self.weight = nn.Parameter(torch.zeros(2 * config.pointer + 1, d))
        self.bias = nn.Parameter(torch.zeros(1))

    def keys(self, x):
        return F.linear(x, self.weight[:-1]).float().chunk(2, dim=-1)[1]

    def forward(self, logits, x, keys, read, known):
        """Logarithms of probabilities, R N V, of the last N positions: by logits, or what followed a key."""
        n, s = logits.shape[1], keys.shape[1]
        query = F.linear(x[:, -n:], self.weight[:-1]).float().chunk(2, dim=-1)[0]
        rest = x[:, -n:].float() @ self.weight[-1].float() + self.bias.float()
        scores = query @ keys.transpose(1, 2) / keys.shape[2] ** 0.5
        seen = torch.ones(n, s, dtype=torch.bool, device=x.device).tril(s - n - 1)
        if known is not None:
            seen = seen & known[:, None].bool()
        scores = scores.masked_fill(~seen, -torch.inf)
        total = torch.cat((scores, rest[..., None]), dim=2).logsumexp(2, keepdim=True)
        followed = F.pad(read[:, 1:], (0, 1))[:, None].expand(scores.shape)
        copied = scores.new_zeros(logits.shape).scatter_add_(2, followed, (scores - total).exp())
        plain = logits.float().log_softmax(2) + rest[..., None] - total
        return torch.logaddexp(plain, copied.clamp_min(torch.finfo(copied.dtype).tiny).log()).to(logits.dtype)


class Block(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        parts, d, f = config.part_names, config.hidden_size, config.intermediate_size
        self.layers = config.num_hidden_layers
        self.layer, self.heads, self.shared = layer, config.num_attention_heads, config.num_key_value_heads
        self.channels = d // self.heads
        self.norm1, self.norm2 = Norm(config, d), Norm(config, d)
        self.qkv = nn.Linear(d, d + 2 * self.shared * self.channels, bias=False)
        self.out = nn.Linear(d, d, bias=False)
        self.q_norm, self.k_norm = (Norm(config, self.channels) if "qk_norm" in parts else None for _ in "qk")
        self.up = nn.Linear(d, f, bias=False) if "relu2" in parts else None
        self.gate_up = None if "relu2" in parts else nn.Linear(d, 2 * f, bias=False)
        self.down = nn.Linear(f, d, bias=False)
        self.value_gate = Weight(self.shared, min(32, d)) if layer in config.value_layers else None
        self.scales = Weight(2) if "scales" in parts else None
        before, keys = config.positions_before, 2 * self.shared * self.channels
        self.convolution1, self.convolution2 = (Weight(before * c) if before else None for c in (keys, d))

    def forward(self, x, first, values, cos, sin, seen, past, known):
        if self.scales is not None:
            x = self.scales.weight[0] * x + self.scales.weight[1] * first
        x = x + self.attention(self.norm1(x), values, cos, sin, seen, past, known)
        y = self.convolved(self.norm2(x), self.convolution2, past, 2 * self.layer + 1, known)
        if self.up is not None:
            return x + self.down(F.relu(self.up(y)).square())
        gate, up = self.gate_up(y).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)

    def convolved(self, x, convolution, past, number, known):
        """x_t + sum of w_j x_(t-j), without padding; the inputs are kept as keys of further layers of the cache."""
        if convolution is None:
            return x
        (_, t, d), inputs = x.shape, x
        if known is not None:
            inputs = x * known[:, -t:, None]
        if past is not None:
            inputs = kept(past, self.layers + number, inputs)
        factors, total = convolution.weight.float().view(-1, d), x.float()
        before = F.pad(inputs.float(), (0, 0, len(factors), 0))
        for j, factor in enumerate(factors, 1):
            end = before.shape[1] - j
            total = total + factor * before[:, end - t : end]
        return total.to(x.dtype)

    def attention(self, x, values, cos, sin, seen, past, known):
        (r, t, d), product = x.shape, self.qkv(x)
        keys = self.convolved(product[..., d:], self.convolution1, past, 2 * self.layer, known)
        heads = torch.cat((product[..., :d], keys), dim=-1).view(r, t, -1, self.channels)
        q, k, v = heads.split((self.heads, self.shared, self.shared), dim=2)
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.value_gate is not None:
            weight = self.value_gate.weight
            gate = 2 * F.linear(x[..., : weight.shape[1]], weight).sigmoid()
            v = v + gate[..., None] * values.reshape(v.shape)
        q, k, v = (part.transpose(1, 2) for part in (rotated(q, cos, sin), rotated(k, cos, sin), v))  # R H T C
        if past is not None:
            k, v = past.update(k, v, self.layer)
        group = self.heads // self.shared
        k, v = (part.repeat_interleave(group, dim=1) for part in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.out(mixed.transpose(1, 2).reshape(r, t, d))


def kept(past, index, x):
    """x, R T D, after those before it: the keys of a further layer of the cache."""
    while len(past.layers) <= index:
        past.layers.append(DynamicLayer())
    return past.update(x[:, None], x.new_empty(len(x), 1, x.shape[1], 0), index)[0][:, 0]


def rotated(x, cos, sin):
    """The channel pairs (c, c + C/2) of R T H C, rotated by angles of R T C/2."""
    cos, sin = cos[:, :, None], sin[:, :, None]
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class SwiftForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = SwiftConfig
    base_model_prefix = ""
    _supports_sdpa = True

    def __init__(self, config):
        super().__init__(config)
        d, keys = config.hidden_size, config.hidden_size // config.num_attention_heads * config.num_key_value_heads
        self.embedding = nn.Embedding(config.vocab_size, d)
        self.pair_embedding = nn.Embedding(config.pairs, d) if config.pairs else None
        self.embedding_norm = Norm(config, d) if "embedding_norm" in config.part_names else None
        tables = len(config.value_layers)
        self.value_embedding = nn.Embedding(config.vocab_size, keys * tables) if tables else None
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = Norm(config, d)
        self.head = None if config.tied else nn.Linear(d, config.vocab_size, bias=False)
        self.pointer = Pointer(config) if config.pointer else None
        self.post_init()

    def get_input_embeddings(self):
        return self.embedding

    def set_input_embeddings(self, value):
        self.embedding = value

    def get_output_embeddings(self):
        return self.head

    def pairs_of(self, ids, past, known):
        """The row of each token and the one before it, R T, by a hash; the first has vocab_size before it."""
        config, read = self.config, ids
        if past is not None:
            index = config.num_hidden_layers * (3 if config.positions_before else 1)
            read = kept(past, index, ids[..., None])[..., 0]
        own = slice(read.shape[1] - ids.shape[1], read.shape[1])
        before = F.pad(read, (1, 0), value=config.vocab_size)[:, own]
        if known is not None:
            before = before.masked_fill(F.pad(known, (1, 0), value=1)[:, own] == 0, config.vocab_size)
        return (before * config.vocab_size + ids) % 2147483647 * 48271 % 2147483647 % config.pairs

    def masks(self, places, total, attention_mask):
        """What a query sees in layers of full and of local attention, R 1 T S: itself always."""
        keys = torch.arange(total, device=places.device)
        distance = places[:, None] - keys
        seen = (distance >= 0)[None, None]
        if attention_mask is not None:
            seen = (seen & attention_mask[:, None, None, :total].bool()) | (distance == 0)
        local = seen if self.config.window is None else seen & (distance < self.config.window)
        return seen, local

    def forward(
        self,
        input_ids,
        attention_mask=None,
        position_ids=None,
        past_key_values=None,
        labels=None,
        use_cache=None,
        logits_to_keep=0,
        **_,
    ):
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache()
        before = 0 if past_key_values is None else past_key_values.get_seq_length()
        places = torch.arange(before, before + input_ids.shape[1], device=input_ids.device)
        positions = places[None] if position_ids is None else position_ids
        angles = positions[..., None].float() * torch.tensor(self.config.frequencies, device=input_ids.device)
        known = None if attention_mask is None else attention_mask[:, : before + len(places)].to(self.dtype)
        full, local = self.masks(places, before + len(places), attention_mask)

        x = self.embedding(input_ids)
        if self.pair_embedding is not None:
            x = x + self.pair_embedding(self.pairs_of(input_ids, past_key_values, known))
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        first, valued, values = x, self.config.value_layers, ()
        if self.value_embedding is not None:
            values = self.value_embedding(input_ids).chunk(len(valued), dim=-1)
        for layer, block in enumerate(self.blocks):
            own = values[valued.index(layer)] if layer in valued else None
            last = (len(self.blocks) - 1 - layer) % self.config.full_every == 0
            x = block(x, first, own, angles.cos(), angles.sin(), full if last else local, past_key_values, known)
        asked = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) and logits_to_keep else slice(None)
        weight = self.embedding.weight if self.head is None else self.head.weight
        x = self.norm(x)
        logits = F.linear(x[:, asked], weight)
        if self.config.cap is not None:
            logits = self.config.cap * torch.tanh(logits / self.config.cap)
        if self.pointer is not None:
            keys, read = self.pointer.keys(x), input_ids
            if past_key_values is not None:
                index = self.config.num_hidden_layers * (3 if self.config.positions_before else 1)
                index += self.pair_embedding is not None
                read = kept(past_key_values, index, input_ids[..., None])[..., 0]
                keys = kept(past_key_values, index + 1, keys)
            logits = self.pointer(logits, x, keys, read, known)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)
