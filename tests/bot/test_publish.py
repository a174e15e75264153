"""Publishing to a GitHub over real HTTP, by the real client: one voice, whatever goes wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from bot.bundle import Bundle
from bot.dry_run import DryForge
from bot.errors import DeniedError, ForgeError, LimitedError
from bot.github import GitHub
from bot.http_client import Client
from bot.marker import STATUS_MARKER, review_marker
from bot.publish import CHECK, Published, Target, fail, publish, start
from bot.review import Settings
from tests.bot.make import BASE, HEAD, bundle, looked
from tests.bot.server.schema import validator
from tests.bot.server.server import Fault, Server
from tests.bot.test_clickable import diff
from tests.spent import spent

OLD = "".join(f"line {i}\n" for i in range(1, 200))
NEW = OLD.replace("line 20\n", "slow 20\n").replace("line 90\n", "slow 90\n")
TARGET = Target(7, HEAD, "https://github.test/run/1")


def hunks(old: str, new: str) -> str:
    text = diff(old, new)
    return text[text.index("@@") :]


def patch(at: int, path: str = "src/a.cu") -> str:
    return diff(NEW, NEW.replace(f"slow {at}\n", f"fast {at}\n"), path)


def two() -> Bundle:
    return bundle(
        looked(2.0, kernel="one", patch=patch(20), against=0.5), looked(1.5, kernel="two", patch=patch(90)),
    )  # fmt: skip


@pytest.fixture
def server() -> Iterator[Server]:
    validator()
    with Server(head=HEAD, base=BASE, files={"src/a.cu": hunks(OLD, NEW)}) as running:
        yield running
        assert running.violations == []


def client(server: Server, **more: Any) -> GitHub:
    slept: list[float] = more.pop("slept", [])
    slow = any(fault.kind == "slow" for fault in server.faults)
    answers = Client("token", api_url=server.url, sleep=slept.append, timeout_s=2 if slow else 60)
    return GitHub("octocat/Hello-World", answers, **more)


def post(server: Server, what: Bundle | None = None, **settings: Any) -> Published:
    return publish(what or two(), client(server), TARGET, Settings(**settings))


def status(server: Server) -> str:
    (comment,) = [c for c in server.comments.values() if c["body"].startswith(STATUS_MARKER)]
    return str(comment["body"])


def test_one_review_with_its_suggestions_one_status_one_check(server: Server) -> None:
    start(client(server), TARGET, Settings())
    assert "has started" in status(server)
    assert server.checks == {}
    done = post(server)
    assert (done.ending, done.inline, done.moved) == ("posted", 2, 0)
    (review,) = server.submitted()
    assert review["commit_id"] == HEAD
    assert review["body"].startswith(review_marker(HEAD))
    assert [(c["path"], c["line"], c.get("start_line")) for c in review["_comments"]] == [
        ("src/a.cu", 20, None), ("src/a.cu", 90, None),
    ]  # fmt: skip
    assert "```suggestion\nfast 20\n```" in review["_comments"][0]["body"]
    assert "1 kernel got slower; 2 kernels could be faster" in status(server)
    (check,) = server.checks.values()
    assert (check["name"], check["status"], check["conclusion"]) == (CHECK, "completed", "neutral")
    assert len(check["_annotations"]) == 3


def test_one_file_with_findings_takes_at_most_twelve_calls(server: Server) -> None:
    post(server, bundle(looked(2.0, patch=patch(20))))
    assert len(server.submitted()) == 1
    assert len(server.requests) <= 12, server.requests


def test_a_new_head_with_an_old_review_takes_at_most_twelve_calls_and_hides_the_old(server: Server) -> None:
    post(server)
    server.head = "c" * 40
    server.requests.clear()
    what = bundle(looked(2.0, patch=patch(20)), head=server.head)
    publish(what, client(server), Target(7, server.head), Settings())
    assert len(server.requests) <= 12, server.requests
    assert len(server.submitted()) == 2
    old, new = server.submitted()
    assert {old["node_id"], f"T_{old['id']}_0", f"T_{old['id']}_1"} == server.minimized
    assert new["node_id"] not in server.minimized
    assert len(server.comments) == 1


def test_the_status_comment_that_was_announced_is_edited_without_being_looked_for(server: Server) -> None:
    forge = client(server)
    number, earlier = start(forge, TARGET, Settings(), first=True)
    assert earlier == 0
    assert [path for _, path in server.requests] == ["/repos/octocat/Hello-World/issues/7/comments"]
    server.requests.clear()
    publish(two(), forge, replace(TARGET, status=number), Settings())
    assert "2 kernels could be faster" in status(server)
    assert ("GET", "/repos/octocat/Hello-World/issues/7/comments") not in server.requests
    assert len(server.requests) <= 8


def test_the_start_names_the_run_that_was_announced_before(server: Server) -> None:
    """Its bundle may answer for kernels that did not change since, on a runner that keeps nothing."""
    publish(two(), client(server), replace(TARGET, run=41), Settings(run=41))
    server.requests.clear()
    status_, earlier = start(client(server), replace(TARGET, head="f" * 40, run=42), Settings())
    assert earlier == 41
    assert [verb for verb, _ in server.requests] == ["GET", "PATCH"]
    assert start(client(server), replace(TARGET, run=43), Settings()) == (status_, 42)


@pytest.mark.parametrize("how", ["deleted", "a stranger's"])
def test_a_status_comment_that_went_is_replaced(server: Server, how: str) -> None:
    number, _ = start(client(server), TARGET, Settings())
    if how == "deleted":
        server.comments.clear()
    else:
        server.comments[number]["user"]["login"] = "mallory"
    publish(two(), client(server), replace(TARGET, status=number), Settings())
    own = [c for c in server.comments.values() if c["user"]["login"] == server.author]
    assert len(own) == 1
    assert "2 kernels could be faster" in own[0]["body"]


def test_a_retried_job_posts_nothing_twice(server: Server) -> None:
    post(server)
    again = post(server)
    assert again.ending == "already posted"
    assert len(server.submitted()) == len(server.reviews) == 1
    assert len(server.comments) == 1
    (check,) = server.checks.values()
    assert len(check["_annotations"]) == 3


def test_a_command_gets_a_review_of_its_own_and_outdates_the_older_one(server: Server) -> None:
    post(server)
    asked = replace(TARGET, comment=5)
    better = bundle(looked(3.0, kernel="one", patch=patch(20), against=0.5))
    assert publish(better, client(server), asked, Settings()).ending == "posted"
    assert publish(better, client(server), asked, Settings()).ending == "already posted"
    assert [r["node_id"] in server.minimized for r in server.submitted()] == [True, False]
    assert post(server).ending == "already posted"  # the event's job is run again


def test_a_comparison_on_request_leaves_the_suggestions_of_a_search_open(server: Server) -> None:
    post(server)
    compared = replace(TARGET, comment=6, searched=False)
    slower = bundle(replace(looked(2.0, kernel="one", against=0.5), result=None, error="compared only, as requested"))
    assert publish(slower, client(server), compared, Settings()).ending == "posted"
    assert [r["node_id"] in server.minimized for r in server.submitted()] == [False, False]


def test_two_jobs_at_once_post_one_review_and_one_status(server: Server) -> None:
    for _ in range(5):
        server.reviews.clear()
        server.comments.clear()
        errors: list[BaseException] = []

        def run(errors: list[BaseException] = errors) -> None:
            try:
                post(server)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert len(server.submitted()) == len(server.reviews) == 1
        assert len(server.comments) == 1


@pytest.mark.parametrize(
    ("moment", "ending"), [("/reviews", "already posted"), ("/events", "posted"), ("/comments", "posted")]
)
def test_another_run_in_the_worst_moment_changes_nothing(server: Server, moment: str, ending: str) -> None:
    met: list[str] = []

    def meanwhile(verb: str, path: str) -> None:
        if verb == "POST" and path.endswith(moment) and not met:
            met.append(path)
            post(server)

    server.before = meanwhile
    assert post(server).ending == ending
    assert met
    assert len(server.submitted()) == len(server.reviews) == 1
    assert len(server.submitted()[0]["_comments"]) == 2
    assert len(server.comments) == 1


def test_a_comment_with_the_marker_by_somebody_else_is_left_alone(server: Server) -> None:
    server.author = "mallory"
    mallory = client(server, login="mallory")
    mallory.add_comment(7, STATUS_MARKER + "\nmine")
    draft = mallory.draft_review(7, HEAD, review_marker(HEAD), ())
    mallory.submit_review(7, draft.id)
    server.author = "github-actions[bot]"
    assert post(server).ending == "posted"
    assert len(server.comments) == 2
    assert [c["body"] for c in server.comments.values() if c["user"]["login"] == "mallory"] == [
        STATUS_MARKER + "\nmine"
    ]


def test_a_moved_head_gets_nothing_of_the_old_run(server: Server) -> None:
    server.head = "d" * 40
    assert post(server).ending == "superseded"
    assert server.reviews == {}
    assert server.comments == {}
    assert [c["head_sha"] for c in server.checks.values()] == [HEAD]


def test_nothing_to_say_posts_no_review(server: Server) -> None:
    assert post(server, bundle(looked(None))).ending == "nothing to report"
    assert server.reviews == {}
    assert "No suggestion" in status(server)
    assert [c["conclusion"] for c in server.checks.values()] == ["success"]


def test_a_line_that_github_refuses_moves_to_the_summary_and_the_rest_is_posted_once(server: Server) -> None:
    server.bad_lines = {90}
    done = post(server)
    assert (done.ending, done.inline, done.moved) == ("posted", 1, 1)
    (review,) = server.submitted()
    assert len(server.reviews) == 1
    assert [c["line"] for c in review["_comments"]] == [20]
    assert "+fast 90" in review["body"]
    assert "GitHub rejected 1 suggestion" in status(server)


def test_no_line_taken_still_gives_one_review(server: Server) -> None:
    server.bad_lines = {20, 90}
    assert post(server).moved == 2
    (review,) = server.submitted()
    assert review["_comments"] == []
    assert "+fast 20" in review["body"]


def test_annotations_go_in_batches_of_fifty_and_once(server: Server) -> None:
    server.faults = [Fault("PATCH", "/check-runs/", "drop", after=True)]
    many = bundle(*(looked(2.0, kernel=f"k{i}", patch=patch(20)) for i in range(120)))
    post(server, many)
    (check,) = server.checks.values()
    assert len(check["_annotations"]) == 120
    assert len({a["message"] + str(i) for i, a in enumerate(check["_annotations"])}) == 120


def test_a_draft_left_by_a_run_that_died_is_submitted_or_deleted(server: Server) -> None:
    dead = client(server)
    dead.draft_review(7, HEAD, review_marker("e" * 40) + "\nold", ())
    assert post(server).ending == "posted"
    assert len(server.reviews) == 1
    server.reviews.clear()
    dead.draft_review(7, HEAD, review_marker(HEAD) + "\nwhole", ())
    assert post(server).ending == "posted"
    assert [r["body"].split("\n")[1] for r in server.submitted()] == ["whole"]


def test_a_read_only_token_is_one_clear_failure(server: Server) -> None:
    server.read_only = True
    with pytest.raises(DeniedError, match="Resource not accessible"):
        post(server)
    assert server.reviews == {}
    assert server.comments == {}


@pytest.mark.parametrize(
    ("cancelled", "word", "conclusion"), [(True, "cancelled", "cancelled"), (False, "The run failed", "neutral")]
)
def test_the_status_says_how_a_run_ended_without_a_result(
    server: Server, cancelled: bool, word: str, conclusion: str
) -> None:
    start(client(server), TARGET, Settings())
    fail(client(server), TARGET, Settings(), cancelled=cancelled)
    assert word in status(server)
    assert [c["conclusion"] for c in server.checks.values()] == [conclusion]


def test_a_failure_in_hostile_words_is_shown_as_words(server: Server) -> None:
    done = fail(client(server), TARGET, Settings(), reason="has '![x](http://e.test/b.png) @octocat <img src=x>'")
    (check,) = server.checks.values()
    for text in (status(server), check["output"]["summary"], done.summary):
        assert "The run failed" in text
        assert not any(bad in text for bad in ("![", "](http:", "<img", "@octocat", "http://"))


def test_a_reaction_is_given_once_and_survives_a_lost_answer(server: Server) -> None:
    server.faults = [Fault("POST", "/reactions", "drop", after=True)]
    client(server).react(5, "eyes")
    client(server).react(5, "rocket")
    assert {content for _, _, content in server.reactions} == {"eyes", "rocket"}


def test_a_dry_run_prints_what_would_be_sent_and_sends_nothing(server: Server) -> None:
    said: list[str] = []
    done = publish(two(), DryForge(client(server), said.append), TARGET, Settings())
    assert done.ending == "posted"
    assert {verb for verb, _ in server.requests} == {"GET"}
    text = "\n".join(said)
    assert "review of aaaaaaaaaaaa" in text
    assert text.count("```suggestion") == 2
    assert "src/a.cu:90" in text
    assert f"would add a comment to pull request 7:\n{STATUS_MARKER}" in text
    assert "would submit that review" in text
    assert "check run 'OptiML' of aaaaaaaaaaaa: completed, neutral" in text
    assert text.count("with an annotation at src/a.cu:") == 3


REVIEWS = "/pulls/7/reviews$"
TRANSIENT = [
    Fault("GET", "/pulls/7$", "502"),
    Fault("GET", "/pulls/7/files", "503", 3),
    Fault("GET", "/pulls/7/files", "drop"),
    Fault("GET", REVIEWS, "500"),
    Fault("GET", REVIEWS, "garbage"),
    Fault("GET", "/comments", "html"),
    Fault("GET", "/comments", "short"),
    Fault("GET", "/pulls/7$", "slow"),
    Fault("POST", REVIEWS, "502"),
    Fault("POST", REVIEWS, "502", after=True),
    Fault("POST", REVIEWS, "drop", after=True),
    Fault("POST", REVIEWS, "empty", after=True),
    Fault("POST", REVIEWS, "slow", after=True),
    Fault("POST", REVIEWS, "403", headers={"Retry-After": "7"}, message="You have exceeded a secondary rate limit."),
    Fault("POST", REVIEWS, "429", headers={"Retry-After": "3"}),
    Fault("POST", "/events", "drop", after=True),
    Fault("POST", "/events", "500"),
    Fault("POST", "/issues/7/comments", "drop", after=True),
    Fault("POST", "/issues/7/comments", "504", 2),
    Fault("POST", "/check-runs", "drop", after=True),
    Fault("GET", "/commits/", "403", headers={"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1"}),
    Fault("*", ".", "drop", 3),
]
LASTING = [
    Fault("POST", REVIEWS, "500", 99),
    Fault("POST", REVIEWS, "drop", 99),
    Fault("POST", REVIEWS, "403", 99, message="Resource not accessible by integration"),
    Fault("POST", REVIEWS, "403", 99, headers={"Retry-After": "3600"}),
    Fault("GET", "/pulls/7/files", "502", 99),
    Fault("GET", "/pulls/7/files", "401", 99, message="Bad credentials"),
    Fault("POST", REVIEWS, "404", 99),
    Fault("POST", REVIEWS, "422", 99, message="Validation Failed"),
    Fault("POST", "/events", "500", 99),
    Fault("GET", "/pulls/7/files", "301", 99, headers={"Location": "http://localhost:9/stolen"}),
    Fault("GET", "/pulls/7/files", "302", 99, headers={"Location": "/login"}),
    Fault("POST", REVIEWS, "307", 99, headers={"Location": "http://localhost:9/stolen"}),
    Fault("GET", "/pulls/7/files", "200", 99),
]


WORDS = {
    "drop": "the connection is dropped", "slow": "no answer in time", "garbage": "no whole JSON", "html": "a page instead of JSON",
    "short": "an answer cut off", "empty": "an empty answer", "200": "JSON of another shape", "401": "a wrong token",
    "404": "not found", "422": "refused as invalid", "429": "too many requests", "500": "an internal error", "502": "a bad gateway",
    "503": "no service", "504": "a gateway's time-out", "301": "moved for good", "302": "moved for now", "307": "moved, same verb",
}  # fmt: skip


def kind(fault: Fault) -> str:
    """What goes wrong, in words."""
    word = WORDS.get(fault.kind, "")
    if fault.kind == "403":
        headers = fault.headers
        word = (
            "limited, wait told" if "Retry-After" in headers else "limit spent" if headers else "a token that may not"
        )
    if fault.headers.get("Retry-After", "0") > "1000" and len(fault.headers["Retry-After"]) > 3:
        word = "limited for longer than is waited"
    return f"{word}, after it took effect" if fault.after else word


def test_at_least_fifteen_kinds_of_fault_are_injected() -> None:
    kinds = {kind(fault) for fault in TRANSIENT + LASTING}
    assert "" not in kinds
    assert len(kinds) >= 15, sorted(kinds)


@pytest.mark.parametrize("fault", TRANSIENT, ids=lambda f: f"{kind(f)}: {f.verb} {f.path} {f.times}")
def test_what_passes_ends_in_exactly_one_review(server: Server, fault: Fault) -> None:
    server.faults = [Fault(**vars(fault))]
    slept: list[float] = []
    done = publish(two(), client(server, slept=slept), TARGET, Settings())
    assert done.ending in ("posted", "already posted")
    assert len(server.submitted()) == len(server.reviews) == 1
    assert len(server.submitted()[0]["_comments"]) == 2
    assert "2 kernels could be faster" in status(server)
    assert len(server.checks) == 1
    assert slept, "the fault was not met"
    if "Retry-After" in fault.headers:
        assert max(slept) >= float(fault.headers["Retry-After"])


@pytest.mark.parametrize("fault", LASTING, ids=lambda f: f"{kind(f)}: {f.verb} {f.path}")
def test_what_lasts_ends_in_one_clear_failure(server: Server, fault: Fault) -> None:
    server.faults = [Fault(**vars(fault))]
    slept: list[float] = []
    with pytest.raises(ForgeError) as caught:
        publish(two(), client(server, slept=slept), TARGET, Settings())
    assert server.submitted() == []
    assert "The review was not posted" in status(server)
    assert [c["conclusion"] for c in server.checks.values()] == ["neutral"]
    assert sum(slept) <= 120
    assert "token" not in str(caught.value).split("may not")[0].replace("the token ", "")
    # The next run, with GitHub well again, posts the review.
    server.faults.clear()
    assert post(server).ending == "posted"
    assert len(server.submitted()) == len(server.reviews) == 1
    assert len(server.comments) == 1


def test_a_review_that_was_posted_is_not_called_unposted(server: Server) -> None:
    server.faults = [Fault("POST", "/check-runs$", "403", 99)]
    with pytest.raises(ForgeError):
        publish(two(), client(server), TARGET, Settings())
    assert len(server.submitted()) == 1
    assert "The review was posted, but the run did not finish" in status(server)
    assert "could not post" not in status(server)


def test_a_pull_request_that_was_closed_meanwhile_ends_its_status(server: Server) -> None:
    start(client(server), TARGET, Settings())
    server.state = "closed"
    assert post(server).ending == "superseded"
    assert "has started" not in status(server)
    assert "the pull request is closed" in status(server)


def test_what_did_not_change_is_not_sent_again_and_costs_no_quota(server: Server) -> None:
    answers = Client("token", api_url=server.url, timeout_s=60)
    forge = GitHub("octocat/Hello-World", answers)
    publish(two(), forge, TARGET, Settings())
    before = len(server.requests)
    assert publish(two(), forge, TARGET, Settings()).ending == "already posted"
    asked = [verb for verb, _ in server.requests[before:]].count("GET")
    # The head, the files, the reviews, the comments; what the first run changed last was not yet known.
    assert asked - server.unchanged <= 2
    assert server.unchanged >= 3


def test_a_wait_over_the_cap_is_refused_at_once(server: Server) -> None:
    server.faults = [Fault("GET", "/pulls/7$", "403", 99, headers={"Retry-After": "3600"})]
    slept: list[float] = []
    with pytest.raises(LimitedError, match="3600"):
        publish(two(), client(server, slept=slept), TARGET, Settings())
    assert slept == []


def test_fifty_files_are_posted_within_three_seconds(server: Server) -> None:
    server.files = {f"src/{i}.cu": hunks(OLD, NEW) for i in range(50)}
    many = [looked(2.0, kernel=f"k{i}", path=f"src/{i}.cu", patch=patch(20, f"src/{i}.cu")) for i in range(50)]
    begin = time.monotonic()
    with spent() as cost:
        done = post(server, bundle(*many))
    assert cost.seconds < 3.0
    assert time.monotonic() - begin < 30.0  # nor does it wait for anything
    assert done.ending == "posted"
    assert done.inline == 10


def test_a_body_of_any_size_is_taken(server: Server) -> None:
    many = bundle(*(looked(2.0, kernel=f"k{i}" + "x" * 250, patch=patch(20) + "+é\n" * 4000) for i in range(200)))
    assert post(server, many).ending == "posted"
    assert len(server.submitted()) == 1
