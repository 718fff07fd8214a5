"""The product of every layout is the plain product, for few rows and many."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from engine.models.linear import PACKED_ROWS, Linear, can_pack


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 2, 3, PACKED_ROWS - 1, PACKED_ROWS, PACKED_ROWS + 1, 40])
def test_it_is_the_plain_product(packed: bool, bias: bool, rows: int) -> None:
    torch.manual_seed(rows)
    weight, offset = torch.randn(70, 33), torch.randn(70) if bias else None
    wide = torch.randn(rows, 50)
    x = wide[:, :33]  # rows need not be contiguous
    linear = Linear(weight, offset, packed=packed)
    with torch.inference_mode():
        out = torch.full((rows, 70), float("nan"))
        assert linear(x, out=out) is out
        torch.testing.assert_close(out, F.linear(x, weight, offset))
        if not bias:
            y = torch.randn(rows, 70)
            expected = y + F.linear(x, weight)
            linear.add_to(y, x)
            torch.testing.assert_close(y, expected)


def test_among_few_rows_a_row_s_product_is_the_same_however_many_there_are() -> None:
    weight, x = torch.randn(300, 64), torch.randn(PACKED_ROWS, 64)
    if not can_pack(weight):
        pytest.skip("this torch has no packed products")
    linear = Linear(weight, packed=True)
    with torch.inference_mode():
        whole = linear(x, out=torch.empty(PACKED_ROWS, 300))
        for rows in range(2, PACKED_ROWS):
            assert torch.equal(linear(x[:rows], out=torch.empty(rows, 300)), whole[:rows])


def test_only_float32_is_packed() -> None:
    assert not can_pack(torch.zeros(4, 4, dtype=torch.bfloat16))
    linear = Linear(torch.eye(4, dtype=torch.bfloat16), packed=True)
    x = torch.ones(2, 4, dtype=torch.bfloat16)
    assert torch.equal(linear(x, out=torch.empty_like(x)), x)
