"""A server that asks for more than its method does: a site sends nothing that it has not shown before."""

from __future__ import annotations

import shutil

import pytest
from worlds_of_sites import digest, make_world, put_number, rewrite

from pflcli.core.errors import InputError

ALONE = {f"site {client}": (client,) for client in range(7)}


def change_head(**changes):
    return lambda head, *_: head.update(changes)


@pytest.fixture
def asked(tmp_path):
    """A site of fedattn that has answered the first message of round 1, and this message."""
    world = make_world("fedattn", tmp_path, ALONE, participation=1.0)
    _, paths = world.write_questions(world.make_server())
    site = world.make_site("site 0")
    site.answer(paths["site 0"])
    return world, site, paths["site 0"]


def other(path, **changes):
    """Return a copy of a question with another model and head."""
    copy = path.with_name("question-000009.msg")
    shutil.copy(path, copy)
    rewrite(copy, put_number(0.5))
    rewrite(copy, change_head(**changes))
    return copy


@pytest.mark.parametrize("is_new", [False, True])
def test_a_phase_that_is_open_cannot_be_asked_again_with_another_model(is_new, asked):
    world, site, path = asked
    site = world.make_site("site 0") if is_new else site
    expected = site.answer(path).read_bytes()
    with pytest.raises(InputError, match="has answered a later message, or another one in its place"):
        site.answer(other(path))
    assert site.answer(path).read_bytes() == expected


def test_a_phase_begins_again_at_most_once_a_client(asked):
    world, site, path = asked
    site.answer(other(path, attempt=7))
    with pytest.raises(InputError, match="attempt 8 at round 1: there are at most 7"):
        site.answer(other(path, attempt=8))
    for attempt in (0, 1, 6):  # also after the messages of these were deleted
        with pytest.raises(InputError, match="late"):
            world.make_site("site 0").answer(other(path, attempt=attempt))


def test_a_phase_cannot_go_back_after_a_site_has_undone_its_last_round(asked):
    """A site that continues after an earlier round has no folder of the one that it undoes."""
    _, site, path = asked
    site.answer(other(path, round=2))
    with pytest.raises(InputError, match="late"):
        site.answer(other(path, round=1, attempt=2))


def test_a_message_of_another_phase_is_not_continued(asked):
    _, site, path = asked
    with pytest.raises(InputError, match="continues a message that site 0 has not answered"):
        site.answer(other(path, round=2, exchange=1, previous=digest(path)))


def with_rows(count):
    """Return a change of a question whose first tensor with rows has ``count`` rows, or all if it is 0."""

    def change(head, entries, data):
        parts, place, is_first = [], 0, True
        for name, entry in entries.items():
            begin, end = entry["data_offsets"]
            if count == 0 or is_first:
                size = (end - begin) // entry["shape"][0] * count
                entry["shape"][0], end = count, begin + size
            is_first = False
            parts.append(data[begin:end])
            entries[name]["data_offsets"] = [place, place + end - begin]
            place += end - begin
        return b"".join(parts)

    return change


@pytest.mark.parametrize(("name", "exchange"), [("panm", 1), ("ifca", 0)])
@pytest.mark.parametrize("count", [0, 2])
def test_rows_that_do_not_belong_together_are_refused(name, exchange, count, tmp_path):
    world = make_world(name, tmp_path, ALONE, participation=1.0)
    server, sites = world.make_server(), {site: world.make_site(site) for site in world.sites}
    for _ in range(exchange):
        world.exchange_once(server, sites)
    _, paths = world.write_questions(server)
    rewrite(paths["site 0"], with_rows(count))
    with pytest.raises(InputError, match="no row, or more rows of one tensor than of another"):
        sites["site 0"].answer(paths["site 0"])
