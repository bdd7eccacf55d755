"""One sender for every broker: order within an aggregate, windows, verdicts. A transport sends, and reads errors."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple, TypeAlias

from salon_jobs.brokers.publisher import (
    NOT_SENT,
    Answers,
    C,
    ClientPublisher,
    OutgoingMessage,
    PublishBroken,
    PublishFailure,
    Verdict,
)
from salon_jobs.core.destinations import parse_destination
from salon_jobs.core.errors import NotReady

# Verdicts on the destination: any other message sent there would get the same.
_OF_DESTINATION: Final = (Verdict.OUTAGE, Verdict.MISSING)
# Sends messages by one request, and blocks until it is answered. One failure is the answer to the whole request.
Request: TypeAlias = Callable[[Sequence[OutgoingMessage]], Answers | PublishFailure]


class BrokerError(NotReady):
    """Error of a broker's SDK: a publisher answers with its ``failure``, pings and sources raise it."""

    def __init__(self, failure: PublishFailure) -> None:
        super().__init__(f"{failure.code}: {failure.detail}")
        self.failure = failure


class Meaning(NamedTuple):
    """Verdict and code for some of a broker's errors, listed by name (separated by spaces) or HTTP status."""

    verdict: Verdict
    code: str
    names: str = ""
    statuses: Container[int] = ()


def find_meaning(meanings: Iterable[Meaning], name: str, status: int, detail: str) -> PublishFailure:
    """Return the first meaning that lists the error; the last one must list every status, as an outage."""
    meaning = next(each for each in meanings if name in each.names.split() or status in each.statuses)
    return PublishFailure(meaning.verdict, meaning.code, detail)


@dataclass(slots=True, eq=False)
class Aggregate:
    """Unpublished messages of one aggregate, as positions in the call's messages; the first is next."""

    aggregate_id: str
    positions: deque[int]
    retries: int = 0


class Sender:
    """Messages of one ``publish`` on their way: at most ``window`` sends at once, and only the first of each aggregate.

    A message without an aggregate is one of its own. After a message that was not published, the rest of its aggregate
    stays NOT_SENT. After an outage, or when the destination does not exist, nothing more is sent: the first message of
    each aggregate gets the same answer. Belongs to one thread or event loop.
    """

    def __init__(
        self,
        messages: Sequence[OutgoingMessage],
        *,
        window: int,
        should_continue: Callable[[], bool],
        skipped: Sequence[PublishFailure | None] = (),
    ) -> None:
        self.messages = messages
        self.should_continue = should_continue
        self.answers: Answers = [NOT_SENT] * len(messages)
        self.stopped_by: PublishFailure | None = None
        self._window = window
        # The first error of a request, which ends the sending.
        self._error: BaseException | None = None
        # The aggregates whose first message may be sent now.
        self._ready: deque[Aggregate] = deque()
        by_id: dict[str, Aggregate] = {}
        for position, message in enumerate(messages):
            if skipped and skipped[position] is not None:
                self.answers[position] = skipped[position]
            elif message.aggregate_id and (aggregate := by_id.get(message.aggregate_id)):
                aggregate.positions.append(position)
            else:
                aggregate = by_id[message.aggregate_id] = Aggregate(message.aggregate_id, deque((position,)))
                self._ready.append(aggregate)

    def may_send(self, *, busy: int) -> bool:
        """Return whether to send another message, while ``busy`` sends have no answer yet."""
        if busy >= self._window or not self._ready:
            return False
        if not self.should_continue():
            self._ready.clear()
            return False
        return True

    def take(self) -> Aggregate:
        """Remove and return an aggregate with a message to send, once ``may_send`` has returned True."""
        return self._ready.popleft()

    def first_of(self, aggregate: Aggregate) -> OutgoingMessage:
        """Return the next message of an aggregate."""
        return self.messages[aggregate.positions[0]]

    def answer(self, aggregate: Aggregate, failure: PublishFailure | None) -> None:
        """Record the answer to an aggregate's first message; if it was published, the next one may be sent."""
        if failure is None:
            self.answers[aggregate.positions.popleft()] = None
            self.resume(aggregate)
            return
        self.answers[aggregate.positions[0]] = failure
        if failure.verdict in _OF_DESTINATION:
            self.stop(failure)

    def resume(self, aggregate: Aggregate) -> None:
        """Have the rest of an aggregate sent, if messages of it are left."""
        if aggregate.positions:
            self._ready.append(aggregate)
            if self.stopped_by is not None:
                self.stop(self.stopped_by)

    def stop(self, failure: PublishFailure) -> None:
        """Send nothing more; the first message of each aggregate gets this answer."""
        self.stopped_by = failure
        while self._ready:
            self.answers[self._ready.popleft().positions[0]] = failure

    def send_by(
        self,
        request: Request,
        threads: Executor,
        *,
        most: int = 1,
        most_bytes: int = 0,
        size_of: Callable[[OutgoingMessage], int] = lambda _: 0,
    ) -> None:
        """Send all by blocking requests of up to ``most`` messages or ``most_bytes``; return once each is answered.

        Raises what a request raises, once the others are answered: what the broker has accepted is not sent again.
        """
        running: dict[Future[Answers], list[Aggregate]] = {}
        while True:
            try:
                while self._error is None and self.may_send(busy=len(running)):
                    batch = self._take_batch(most, most_bytes, size_of)
                    running[threads.submit(self._ask, request, [*map(self.first_of, batch)])] = batch
            except BaseException as error:  # raised below
                self._error = error
            if not running:
                break
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                for aggregate, failure in zip(running.pop(done), done.result(), strict=True):
                    self.answer(aggregate, failure)
        if self._error is not None:
            raise self._error

    def _take_batch(self, most: int, most_bytes: int, size_of: Callable[[OutgoingMessage], int]) -> list[Aggregate]:
        """Take the messages that fit into one request, but at least one, so that the broker rejects one too large."""
        batch = [self.take()]
        room = most_bytes - size_of(self.first_of(batch[0]))
        while self._ready and len(batch) < most and (room := room - size_of(self.first_of(self._ready[0]))) >= 0:
            batch.append(self.take())
        return batch

    def _ask(self, request: Request, messages: Sequence[OutgoingMessage]) -> Answers:
        try:
            answer = request(messages)
        except BaseException as error:  # send_by raises it
            self._error = self._error or error
            return [NOT_SENT] * len(messages)
        if isinstance(answer, list):
            return answer
        if answer.verdict is not Verdict.REFUSED or len(messages) == 1:
            return [answer] * len(messages)
        # Find out which messages caused it; the others are not to blame.
        alone: Answers = []
        for message in messages:
            goes_on = self._error is None and self.should_continue()
            alone += self._ask(request, [message]) if goes_on else [NOT_SENT]
        return alone


class SendingPublisher(ClientPublisher[C]):
    """Publisher whose calls each have a ``Sender``, for the brokers that come with salon_jobs."""

    # Sends of one call at once.
    window: ClassVar[int]

    def publish(self, messages: Sequence[OutgoingMessage], *, should_continue: Callable[[], bool]) -> Answers:
        """Publish to the destination with the name of the resource."""
        if not messages:
            return []
        resource = parse_destination(messages[0].aggregate_type).resource
        skipped = self.skipped(resource, messages)
        sender = Sender(messages, window=self.window, should_continue=should_continue, skipped=skipped)
        if sender.may_send(busy=0):
            try:
                self.send(sender, resource)
            except BaseException as error:
                raise PublishBroken(sender.answers) from error
        return sender.answers

    def skipped(self, resource: str, messages: Sequence[OutgoingMessage]) -> Sequence[PublishFailure | None]:
        """Return for each message why the settings filter it out; nothing if they filter none."""
        return ()

    @abstractmethod
    def send(self, sender: Sender, resource: str) -> None:
        """Send the messages of ``sender``; return once each has its answer. SQL may have written any resource."""
