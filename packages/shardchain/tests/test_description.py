"""The text stays short, whatever the number of ranks and members."""

from sshsdp_shardchain import Degrees, Layout


def test_owners_are_elided_in_the_middle():
    text = Layout.pack([("a", 1000)], Degrees(8, 8, 512), 131072).describe()
    assert (
        "  zero1: 512 chunks of 2, 256 replicas, owners 0 8 16 24 ... 487 495 503 511 (512 ranks)"
    ) in text
    assert "  a  0..1000  zero1 on 0 8 16 24 ... 391 399 407 415 (500 ranks)" in text


def test_eight_owners_are_shown_in_full():
    text = Layout.pack([("a", 8), ("b", 8)], Degrees.for_zero3(16), 16).describe()
    assert "  a  0..8  zero1 on 0 1 2 3 4 5 6 7\n" in text


def test_members_are_elided_in_the_middle():
    lines = Layout.pack([(f"m{i}", 1) for i in range(1000)], Degrees(1, 1, 1), 1).describe()
    shown = lines.splitlines()[4:]
    assert shown[31].split()[0] == "m31"
    assert shown[32] == "  ... 936 members ..."
    assert shown[33].split()[0] == "m968"
    assert len(shown) == 65


def test_sixty_four_members_are_shown_in_full():
    lines = Layout.pack([(f"m{i}", 1) for i in range(64)], Degrees(1, 1, 1), 1).describe()
    assert [line.split()[0] for line in lines.splitlines()[4:]] == [f"m{i}" for i in range(64)]


def test_a_text_for_131072_shards_and_many_members_has_few_characters():
    members = [(f"layers.{i}.weight", 1000 + i) for i in range(20_000)]
    text = Layout.pack(members, Degrees(8, 64, 131072), 131072, align=8).describe()
    assert len(text.splitlines()) < 80
    assert max(map(len, text.splitlines())) < 140
