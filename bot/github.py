"""The Forge of GitHub: comments, reviews and check runs of its pull requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from bot.diff import FileDiff, Status, read_patch
from bot.errors import DiffError, RejectedError
from bot.forge import Check, CheckOutput, CheckStatus, Note, Pull, Reaction
from bot.http_client import Client, understood
from bot.render import Comment

_BATCH = 50  # annotations of one request
_STATUS: Mapping[str, Status] = {"added": "added", "removed": "deleted", "renamed": "renamed"}
_REVIEWS = """query($id: ID!) { node(id: $id) { ... on PullRequest {
  reviews(last: 50) { nodes { id body isMinimized viewerDidAuthor } }
  reviewThreads(last: 100) { nodes { id isResolved isOutdated comments(first: 1) { nodes {
    viewerDidAuthor pullRequestReview { id } } } } } } } }"""


class GitHub:
    """The repository `owner/name`, as `login`. Methods raise ForgeError.

    `github-actions[bot]` is who a workflow's own token speaks as; an App's token speaks as `<slug>[bot]`.
    """

    def __init__(self, repository: str, client: Client, *, login: str = "github-actions[bot]") -> None:
        self._client = client
        self._root = f"/repos/{repository}"
        self._login = login

    @property
    def login(self) -> str:
        return self._login

    def pull(self, number: int) -> Pull:
        return _pull(self._client.get(f"{self._root}/pulls/{number}"))

    def files(self, number: int) -> tuple[FileDiff, ...]:
        return tuple(_file(item) for item in self._client.listed(f"{self._root}/pulls/{number}/files"))

    def comments(self, number: int) -> tuple[Note, ...]:
        return tuple(_note(item) for item in self._client.listed(f"{self._root}/issues/{number}/comments"))

    def add_comment(self, number: int, body: str) -> Note:
        def landed() -> Note | None:
            mine = [note for note in self.comments(number) if note.author == self._login and _same(note.body, body)]
            return mine[-1] if mine else None

        return self._client.create(
            lambda: _note(self._client.send("POST", f"{self._root}/issues/{number}/comments", {"body": body})), landed
        )

    def edit_comment(self, id: int, body: str) -> None:
        self._client.retried(lambda: self._client.send("PATCH", f"{self._root}/issues/comments/{id}", {"body": body}))

    def delete_comment(self, id: int) -> None:
        self._client.delete(f"{self._root}/issues/comments/{id}")

    def react(self, comment: int, content: Reaction) -> None:
        # The same reaction twice is one: GitHub answers 200 instead of 201.
        path = f"{self._root}/issues/comments/{comment}/reactions"
        self._client.retried(lambda: self._client.send("POST", path, {"content": content}))

    def reviews(self, number: int) -> tuple[Note, ...]:
        return tuple(_note(item) for item in self._client.listed(f"{self._root}/pulls/{number}/reviews"))

    def draft_review(self, number: int, head: str, body: str, comments: Sequence[Comment]) -> Note:
        data: dict[str, Any] = {"commit_id": head, "body": body, "comments": [_comment(c) for c in comments]}

        def landed() -> Note | None:
            for note in self.reviews(number):
                if note.author == self._login and note.state == "PENDING" and _same(note.body, body):
                    return note
            return None

        return self._client.create(
            lambda: _note(self._client.send("POST", f"{self._root}/pulls/{number}/reviews", data)), landed
        )

    def submit_review(self, number: int, id: int) -> None:
        path = f"{self._root}/pulls/{number}/reviews/{id}"

        def landed() -> bool | None:
            return True if self._client.get(path).get("state") != "PENDING" else None

        try:
            self._client.create(lambda: bool(self._client.send("POST", f"{path}/events", {"event": "COMMENT"})), landed)
        except RejectedError:
            # Another run may have submitted it in between.
            if not landed():
                raise

    def delete_review(self, number: int, id: int) -> None:
        self._client.delete(f"{self._root}/pulls/{number}/reviews/{id}")

    def checks(self, head: str, name: str) -> tuple[Check, ...]:
        query = urlencode({"check_name": name, "per_page": 100})
        data = self._client.get(f"{self._root}/commits/{head}/check-runs?{query}")
        return tuple(_check(item) for item in data.get("check_runs") or ())

    def write_check(
        self,
        name: str,
        head: str,
        key: str,
        status: CheckStatus,
        conclusion: str,
        output: CheckOutput,
        known: Check | None,
    ) -> None:
        left = list(output.annotations)
        if known is not None:
            # An earlier try sent these already; GitHub adds up what it is sent.
            left = left[known.annotations :]
        data: dict[str, Any] = {"name": name, "external_id": key, "status": status}
        if status == "completed":
            data["conclusion"] = conclusion
        first = True
        while first or left:
            batch, left = left[:_BATCH], left[_BATCH:]
            data["output"] = {"title": output.title, "summary": output.summary, "annotations": batch}
            known = self._check_batch(name, head, data, known, len(batch))
            first = False

    def _check_batch(self, name: str, head: str, data: dict[str, Any], known: Check | None, size: int) -> Check:
        if known is None:

            def created() -> Check | None:
                return next((c for c in self.checks(head, name) if c.key == data["external_id"]), None)

            create = {**data, "head_sha": head}
            return self._client.create(
                lambda: _check(self._client.send("POST", f"{self._root}/check-runs", create)), created
            )
        path, before = f"{self._root}/check-runs/{known.id}", known.annotations

        def grown() -> Check | None:
            now = _check(self._client.get(path))
            return now if size and now.annotations >= before + size else None

        return self._client.create(lambda: _check(self._client.send("PATCH", path, data)), grown)

    def hide_outdated(self, pull: Pull, marker: str, keep: str) -> int:
        if not pull.node_id:
            return 0
        found = self._client.retried(lambda: self._client.graphql(_REVIEWS, {"id": pull.node_id})).get("node") or {}
        old = {
            r["id"]: r["isMinimized"] for r in found.get("reviews", {}).get("nodes", [])
            if r["viewerDidAuthor"] and marker in r["body"] and keep not in r["body"]
        }  # fmt: skip
        parts = [("minimizeComment", "subjectId", id, ", classifier: OUTDATED") for id, done in old.items() if not done]
        for thread in found.get("reviewThreads", {}).get("nodes", []):
            comments = thread["comments"]["nodes"]
            mine = (
                comments
                and comments[0]["viewerDidAuthor"]
                and (comments[0]["pullRequestReview"] or {}).get("id") in old
            )
            if mine and not thread["isResolved"]:
                parts.append(("resolveReviewThread", "threadId", thread["id"], ""))
        parts = parts[:50]
        if parts:
            names = ", ".join(f"$v{i}: ID!" for i in range(len(parts)))
            fields = " ".join(
                f"m{i}: {call}(input: {{{key}: $v{i}{more}}}) {{ clientMutationId }}"
                for i, (call, key, _, more) in enumerate(parts)
            )
            variables = {f"v{i}": id for i, (_, _, id, _) in enumerate(parts)}
            self._client.retried(lambda: self._client.graphql(f"mutation({names}) {{ {fields} }}", variables))
        return len(parts)


@understood
def _pull(data: Any) -> Pull:
    head, base = data["head"], data["base"]
    repository = head.get("repo") or {}
    return Pull(
        int(data["number"]), head["sha"], base["sha"], head["ref"], repository.get("full_name") or "",
        data["state"] == "open", data.get("node_id") or "",
    )  # fmt: skip


@understood
def _file(item: Any) -> FileDiff:
    path, status = str(item["filename"]), _STATUS.get(item["status"], "modified")
    old = str(item.get("previous_filename") or path)
    try:
        return read_patch(path, item.get("patch") or "", old_path=old, status=status)
    except DiffError:
        return FileDiff(path, old, status, ())


@understood
def _note(data: Any) -> Note:
    return Note(
        id=int(data["id"]), body=data.get("body") or "", author=(data.get("user") or {}).get("login") or "",
        state=data.get("state") or "", commit=data.get("commit_id") or "", url=data.get("html_url") or "",
    )  # fmt: skip


@understood
def _check(data: Any) -> Check:
    count = int((data.get("output") or {}).get("annotations_count") or 0)
    return Check(
        int(data["id"]), data.get("external_id") or "", data.get("status") or "", count, data.get("conclusion") or "",
        (data.get("output") or {}).get("title") or "",
    )  # fmt: skip


def _comment(comment: Comment) -> dict[str, Any]:
    data: dict[str, Any] = {"path": comment.path, "line": comment.line, "side": "RIGHT", "body": comment.body}
    if comment.start is not None:
        data |= {"start_line": comment.start, "start_side": "RIGHT"}
    return data


def _same(one: str, other: str) -> bool:
    """GitHub trims bodies and may change their line ends."""
    return one.replace("\r\n", "\n").strip() == other.replace("\r\n", "\n").strip()
