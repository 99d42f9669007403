"""The two functions of a transport, and the folder that has them; Flower and NVFlare are in test_relays.py."""

from __future__ import annotations

import threading
import time

import pytest

from pflcli.core.errors import InputError
from pflcli.plugins.sites.transport import SERVER, Address, Folder, deliver, folder_of, read_pieces, write_whole

QUESTION, LAST = Address("002-ukb", "", 3), Address("002-ukb", "seed-0-ditto", None)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        (QUESTION, "002-ukb/question-000003.msg"),
        (QUESTION.answer, "002-ukb/answer-000003.msg"),
        (LAST, "002-ukb/seed-0-ditto/final.msg"),
        (
            Address("1234-S-o-Paulo", "seed-0-knn-per.plus", 1_234_567),
            "1234-S-o-Paulo/seed-0-knn-per.plus/question-1234567.msg",
        ),
    ],
)
def test_an_address_is_a_path_below_the_exchange(address, text):
    assert str(address) == text
    assert Address.parse(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "question-000001.msg",
        "/etc/question-000001.msg",
        "../002-ukb/question-000001.msg",
        "002-ukb/../question-000001.msg",
        "002-ukb/.hidden/question-000001.msg",
        "002-ukb/a/b/question-000001.msg",
        "002-ukb/question-1.msg",
        "002-ukb/question-000001.msg\n",
        "002-ukb/deployment.json",
        "ukb/final.msg",
    ],
)
def test_other_paths_are_no_address(text, tmp_path):
    with pytest.raises(InputError, match="is not the address of a message"):
        Address.parse(text)
    with pytest.raises(InputError):
        deliver(Folder(tmp_path / "exchange"), text, b"content", 0.0)
    assert not [*tmp_path.rglob("*.msg")]


def test_names_of_sites_are_those_of_their_folders(tmp_path):
    own = folder_of(tmp_path, ["a", "Charité Berlin"], "Charité Berlin", "seed-0/ditto")
    assert own == tmp_path / "001-Charit-Berlin" / "seed-0-ditto"
    assert Address("001-Charit-Berlin", "", 1).name == "Charit-Berlin"


def test_a_folder_yields_what_has_arrived_for_each_place(tmp_path):
    folder = Folder(tmp_path)

    def arrived(place):
        return {str(address): b"".join(pieces) for address, pieces in folder.fetch(place)}

    assert arrived(SERVER) == arrived("002-ukb") == {}
    for number in (1, 2):
        folder.post(Address("002-ukb", "", number), [b"question ", b"%d" % number])
    folder.post(Address("002-ukb", "seed-0-ditto", 7), [b"of a run"])
    folder.post(Address("000-mhh", "", 1), [b"for another site"])
    (tmp_path / "002-ukb" / "question-000009 (copy).msg").touch()
    expected = {"002-ukb/question-000002.msg": b"question 2", "002-ukb/seed-0-ditto/question-000007.msg": b"of a run"}
    assert arrived("002-ukb") == expected
    assert arrived(SERVER) == {}
    folder.post(Address("002-ukb", "", 2).answer, [b"answer"])
    del expected["002-ukb/question-000002.msg"]
    assert arrived("002-ukb") == expected
    assert arrived(SERVER) == {"002-ukb/answer-000002.msg": b"answer"}
    folder.post(Address("002-ukb", "", 3), [b"question 3"])
    assert arrived(SERVER) == {}
    folder.post(LAST, [b"the end"])
    expected = {"002-ukb/question-000003.msg": b"question 3", "002-ukb/seed-0-ditto/final.msg": b"the end"}
    assert arrived("002-ukb") == expected


def test_a_message_is_whole_or_not_there(tmp_path):
    folder = Folder(tmp_path)
    path = folder.post(QUESTION, [b"first"])

    def fail():
        yield b"half of "
        assert path.read_bytes() == b"first"
        raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match="cannot write"):
        folder.post(QUESTION, fail())
    assert path.read_bytes() == b"first"
    assert [*path.parent.iterdir()] == [path]


def test_a_large_file_is_read_in_pieces(tmp_path):
    content = bytes(range(256)) * 10_000
    path = write_whole(tmp_path / "new folder" / "file", [content])
    pieces = [*read_pieces(path)]
    assert len(pieces) == 3
    assert b"".join(pieces) == content


def test_a_site_answers_what_is_delivered_and_an_answer_is_sent_again(tmp_path):
    folder = Folder(tmp_path)

    def serve():
        while not (found := [*folder.fetch("002-ukb")]):
            time.sleep(0.001)
        ((address, pieces),) = found
        folder.post(address.answer, [b"to ", *pieces])

    site = threading.Thread(target=serve)
    site.start()
    assert deliver(folder, str(QUESTION), b"this", 30.0) == b"to this"
    site.join()
    assert deliver(folder, str(QUESTION), b"this", 30.0) == b"to this"  # by nobody: it is stored
    # The server asks something else with this number: what answered the first question is no answer to it.
    assert deliver(folder, str(QUESTION), b"that", 0.01) == b""
    assert folder.find(QUESTION).read_bytes() == b"that"
    assert not folder.find(QUESTION.answer).exists()


def test_a_site_that_does_not_answer_in_time_answers_later(tmp_path):
    folder = Folder(tmp_path)
    assert deliver(folder, str(QUESTION), b"this", 0.01) == b""
    folder.post(QUESTION.answer, [b"late"])
    assert deliver(folder, str(QUESTION), b"this", 30.0) == b"late"


def test_the_folder_at_a_site_is_emptied_behind_its_answers(tmp_path):
    folder = Folder(tmp_path)
    first, second, third = (Address("002-ukb", "seed-0-ditto", number) for number in (1, 2, 3))
    other = Address("002-ukb", "seed-1-ditto", 1)
    for address in (first, first.answer, second, other, other.answer):
        folder.post(address, [b"content"])
    deliver(folder, str(third), b"content", 0.0)
    # The second question is without an answer: the site may be reading it.
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.msg")}
    assert names == {str(address) for address in (second, third, other, other.answer)}
    assert deliver(folder, str(LAST), b"the end", 30.0) == b""
    assert folder.find(LAST).read_bytes() == b"the end"


def test_a_relay_at_a_site_accepts_no_answer(tmp_path):
    with pytest.raises(InputError, match="not a message to a site"):
        deliver(Folder(tmp_path), str(QUESTION.answer), b"forged", 0.0)
    assert not [*tmp_path.iterdir()]
