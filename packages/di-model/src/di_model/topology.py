"""Which layer shares what with which: the role of every layer, derived from the id lists of a configuration.

Source of the rules: checkpoint spec, 2.4; attention spec, 1.3, 9.3, 11.1 and 12.1.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from di_model.config_fields import ConfigError

SUPPORTED_RATIOS = (0, 1, 2)


@dataclass(frozen=True)
class LayerRole:
    """What one layer owns and what it borrows. Layer references are backbone layer indices.

    ``None`` in a ``*_source`` field means that the layer takes no part in that kind of sharing: layers of
    ratio 0 see their sliding window only.
    """

    index: int
    """Backbone index, or ``num_hidden_layers + j`` for draft layer ``j``."""
    ratio: int
    """Tokens per compressed KV entry (1 or 2); 0 for a layer that has only its window."""
    kv_source: int | None = None
    """Layer whose compressed KV this layer reads."""
    index_source: int | None = None
    """Layer whose top-k selection this layer uses."""
    index_k_source: int | None = None
    """Layer whose index keys its selection is scored against."""
    candidate_source: int | None = None
    """Layer whose candidate blocks restrict the selection; the source names itself and scores everything."""
    engram: int | None = None
    """Position of the layer in ``engram_layer_ids``."""
    draft_feature: int | None = None
    """Position of the layer in ``dspark_target_layer_ids``."""
    is_consumer: bool = False
    """At or after the first layer of ratio 1: in prefill, needed only for rows whose output is needed."""

    @property
    def is_kv_source(self) -> bool:
        return self.kv_source == self.index

    @property
    def is_index_source(self) -> bool:
        return self.index_source == self.index

    @property
    def is_index_k_source(self) -> bool:
        return self.index_k_source == self.index

    @property
    def is_candidate_source(self) -> bool:
        return self.candidate_source == self.index


@dataclass(frozen=True)
class SharingLists:
    """The keys of ``text_config`` that decide who shares with whom, under their JSON names."""

    num_hidden_layers: int
    num_nextn_predict_layers: int
    compress_ratios: tuple[int, ...]
    kv_source_layer_ids: tuple[int, ...]
    index_source_layer_ids: tuple[int, ...]
    index_k_source_layer_ids: tuple[int, ...]
    candidate_source_layer_id: int | None
    engram_layer_ids: tuple[int, ...]
    dspark_target_layer_ids: tuple[int, ...]


def derive_roles(lists: SharingLists) -> tuple[LayerRole, ...]:
    """One role for each backbone layer, in order.

    Raises ConfigError naming the key when the lists contradict each other (attention spec, 11.1).
    """
    _check_ratios(lists)
    _check_ids(lists)
    _check_refinement(lists)
    ratios = lists.compress_ratios
    boundary = ratios.index(1)
    kv = _nearest_sources(lists.kv_source_layer_ids, lists.num_hidden_layers)
    index = _nearest_sources(lists.index_source_layer_ids, lists.num_hidden_layers)
    index_k = _nearest_sources(lists.index_k_source_layer_ids, lists.num_hidden_layers)
    candidate = () if lists.candidate_source_layer_id is None else (lists.candidate_source_layer_id,)
    candidates = _nearest_sources(candidate, lists.num_hidden_layers)
    roles = tuple(
        LayerRole(
            index=layer,
            ratio=ratios[layer],
            kv_source=kv[layer],
            index_source=index[layer],
            index_k_source=index_k[layer],
            candidate_source=candidates[layer],
            engram=_position(lists.engram_layer_ids, layer),
            draft_feature=_position(lists.dspark_target_layer_ids, layer),
            is_consumer=layer >= boundary,
        )
        for layer in range(lists.num_hidden_layers)
    )
    _check_sharing(roles)
    _check_boundary(lists, boundary)
    _check_candidates(lists)
    return roles


def derive_draft_roles(lists: SharingLists) -> tuple[LayerRole, ...]:
    """Draft layers have only their window, whatever their entry of ``compress_ratios`` says (spec 2.4)."""
    first = lists.num_hidden_layers
    return tuple(LayerRole(index=first + j, ratio=0) for j in range(lists.num_nextn_predict_layers))


def _position(ids: Sequence[int], layer: int) -> int | None:
    return ids.index(layer) if layer in ids else None


def _nearest_sources(sources: Sequence[int], num_layers: int) -> tuple[int | None, ...]:
    """For every layer the nearest source not later than itself."""
    nearest: int | None = None
    out = []
    for layer in range(num_layers):
        nearest = layer if layer in sources else nearest
        out.append(nearest)
    return tuple(out)


def _check_ratios(lists: SharingLists) -> None:
    ratios = lists.compress_ratios
    expected = lists.num_hidden_layers + lists.num_nextn_predict_layers
    name = "text_config.compress_ratios"
    if len(ratios) != expected:
        raise ConfigError(
            name,
            list(ratios),
            f"{expected} entries (num_hidden_layers + num_nextn_predict_layers), not {len(ratios)}",
        )
    for layer, ratio in enumerate(ratios):
        if ratio not in SUPPORTED_RATIOS:
            raise ConfigError(f"{name}[{layer}]", ratio, "0, 1 or 2")
    if 1 not in ratios[: lists.num_hidden_layers]:
        raise ConfigError(name, list(ratios), "at least one backbone layer of ratio 1")


def _check_ids(lists: SharingLists) -> None:
    names = (
        "kv_source_layer_ids",
        "index_source_layer_ids",
        "index_k_source_layer_ids",
        "engram_layer_ids",
        "dspark_target_layer_ids",
    )
    last = lists.num_hidden_layers - 1
    for name in names:
        for position, layer in enumerate(getattr(lists, name)):
            if not 0 <= layer <= last:
                raise ConfigError(f"text_config.{name}[{position}]", layer, f"backbone layer ids 0..{last}")


def _check_refinement(lists: SharingLists) -> None:
    """Compressed layers follow the first source without a gap, and each finer map refines the coarser one."""
    first = next(layer for layer, ratio in enumerate(lists.compress_ratios) if ratio)
    for name in ("kv_source_layer_ids", "index_k_source_layer_ids", "index_source_layer_ids"):
        ids = getattr(lists, name)
        if not ids or min(ids) != first:
            raise ConfigError(
                f"text_config.{name}",
                list(ids),
                f"a list that begins with the first compressed layer, {first}",
            )
    for layer in range(first, lists.num_hidden_layers):
        if lists.compress_ratios[layer] == 0:
            raise ConfigError(
                f"text_config.compress_ratios[{layer}]",
                0,
                f"1 or 2 after the first compressed layer ({first})",
            )
    chain = ("kv_source_layer_ids", "index_k_source_layer_ids", "index_source_layer_ids")
    for coarse, fine in itertools.pairwise(chain):
        lost = sorted(set(getattr(lists, coarse)) - set(getattr(lists, fine)))
        if lost:
            raise ConfigError(
                f"text_config.{fine}",
                list(getattr(lists, fine)),
                f"a list that holds every id of {coarse}: {lost} too",
            )


def _check_sharing(roles: Sequence[LayerRole]) -> None:
    """A layer and the layer it borrows from compress by the same ratio."""
    for role in roles:
        for kind in ("kv_source", "index_source", "index_k_source"):
            source = getattr(role, kind)
            if source is not None and roles[source].ratio != role.ratio:
                raise ConfigError(
                    f"text_config.compress_ratios[{role.index}]",
                    role.ratio,
                    f"{roles[source].ratio}, the ratio of the layer's {kind}, layer {source}",
                )


def _check_boundary(lists: SharingLists, boundary: int) -> None:
    """One compressed KV serves all consumer layers.

    A second source among them would read the hidden rows of the first consumer layer (attention spec, 12.2);
    no checkpoint has one.
    """
    after = [layer for layer in lists.kv_source_layer_ids if layer >= boundary]
    if after != [boundary]:
        raise ConfigError(
            "text_config.kv_source_layer_ids",
            list(lists.kv_source_layer_ids),
            f"exactly one source from the first layer of ratio 1 on, that layer ({boundary}) itself",
        )


def _check_candidates(lists: SharingLists) -> None:
    source = lists.candidate_source_layer_id
    if source is None:
        return
    name = "text_config.candidate_source_layer_id"
    if source not in lists.index_source_layer_ids:
        raise ConfigError(
            name, source, f"null or one of index_source_layer_ids {list(lists.index_source_layer_ids)}"
        )
    ratios = set(lists.compress_ratios[source : lists.num_hidden_layers])
    if len(ratios) != 1:
        raise ConfigError(
            name, source, f"a layer after which the compress ratio no longer changes (here {sorted(ratios)})"
        )
