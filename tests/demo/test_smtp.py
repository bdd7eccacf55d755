"""Tests the local mail server: refused while down, then mails are counted by invitation."""

from __future__ import annotations

import smtplib
from email.message import EmailMessage
from uuid import uuid4

import pytest

from project.local.smtp import REJECTED_DOMAIN, LocalSmtp


def _mail(invitation: object, to: str = "someone@chain.example") -> EmailMessage:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "salon@salon.example", to, "Invitation"
    mail["Message-ID"] = f"<invitation-{invitation}@salon.example>"
    mail.set_content("Welcome")
    return mail


def test_down_then_up_on_the_same_port() -> None:
    invitation = uuid4()
    with LocalSmtp() as smtp:
        port = smtp.port
        with pytest.raises(ConnectionRefusedError):
            smtplib.SMTP("127.0.0.1", port, timeout=5)
        smtp.up()
        with smtplib.SMTP("127.0.0.1", port, timeout=5) as client:
            client.send_message(_mail(invitation))
            client.send_message(_mail(invitation))
        assert smtp.mails == {str(invitation): 2}
        assert smtp.recipients == {"someone@chain.example": 2}
    with pytest.raises(ConnectionRefusedError):
        smtplib.SMTP("127.0.0.1", port, timeout=5)


def test_some_recipients_are_refused_for_good() -> None:
    with LocalSmtp() as smtp:
        smtp.up()
        with smtplib.SMTP("127.0.0.1", smtp.port, timeout=5) as client:
            with pytest.raises(smtplib.SMTPRecipientsRefused):
                client.send_message(_mail(uuid4(), to=f"typo@{REJECTED_DOMAIN}"))
            with pytest.raises(smtplib.SMTPDataError):
                client.send_message(_mail("unknown"))
        assert smtp.rejected == {f"typo@{REJECTED_DOMAIN}": 1}
        assert not smtp.mails
