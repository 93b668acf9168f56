from __future__ import annotations

import pytest

from respsd.bench.comparison.methods import Kind, Method, parse_concurrencies, parse_method, parse_methods, plain_method
from respsd.control.action import EAGLE3, OFF, Action
from respsd.errors import InvalidRequest


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("transformers", Method("transformers", Kind.TRANSFORMERS)),
        ("assisted:a/b@main", Method("assisted:a/b@main", Kind.ASSISTED, assistant="a/b@main")),
        ("prompt-lookup", Method("prompt-lookup", Kind.PROMPT_LOOKUP, drafted_tokens=10)),
        ("prompt-lookup:3", Method("prompt-lookup:3", Kind.PROMPT_LOOKUP, drafted_tokens=3)),
        ("off", Method("off", Kind.CONSTANT, action=OFF)),
        ("eagle3", Method("eagle3", Kind.CONSTANT, action=EAGLE3)),
        ("16:4:4", Method("16:4:4", Kind.CONSTANT, action=Action(16, 4, 4))),
        ("sweep", Method("sweep", Kind.SWEEP)),
        ("calibrated", Method("calibrated", Kind.CALIBRATED)),
        ("policy:7", Method("policy:7", Kind.POLICY, policy="7")),
        ("policy:champion", Method("policy:champion", Kind.POLICY, policy="champion")),
    ],
)
def test_every_name_is_one_method(name, method):
    assert parse_method(name) == method


@pytest.mark.parametrize(
    "name",
    ["warp", "assisted", "assisted:", "policy:", "prompt-lookup:0", "prompt-lookup:x", "1:2", "off:1", "sweep:2"],
)
def test_what_is_no_method_is_named(name):
    with pytest.raises(InvalidRequest, match=f"methods: '{name}'"):
        parse_method(name)


def test_a_tree_that_cannot_be_is_refused():
    with pytest.raises(InvalidRequest, match="total_tokens"):
        parse_method("1:4:4")


def test_a_list_keeps_its_order_and_refuses_repetition():
    assert [method.name for method in parse_methods("off, 8:3:3 ,transformers")] == ["off", "8:3:3", "transformers"]
    with pytest.raises(InvalidRequest, match="twice"):
        parse_methods("off,8:3:3,off")
    with pytest.raises(InvalidRequest, match="at least one"):
        parse_methods(" , ")


def test_transformers_speculates_for_one_stream_only():
    methods = parse_methods("transformers,assisted:m,prompt-lookup,off")
    assert [method.serves(8) for method in methods] == [True, False, False, True]
    assert all(method.serves(1) for method in methods)


@pytest.mark.parametrize(
    ("names", "plain"),
    [
        ("eagle3,transformers,off", "off"),
        ("eagle3,transformers", "transformers"),
        ("eagle3,8:3:3", "eagle3"),
    ],
)
def test_plain_decoding_is_ours_then_transformers_then_the_first(names, plain):
    assert plain_method(parse_methods(names)).name == plain


def test_concurrencies_are_sorted_numbers():
    assert parse_concurrencies("8, 1,8") == [1, 8]
    for text in ("", "0", "1,x", "-1"):
        with pytest.raises(InvalidRequest, match="concurrency"):
            parse_concurrencies(text)
