"""Installs the function that deletes expired invitations of all stores."""

from project.salon.invitation_cleanup import InstallInvitationCleanup
from salon_jobs.access.operations import LocksBriefly


class Migration(LocksBriefly):
    """Migration in one transaction, because the role change inside it is local."""

    dependencies = [("salon", "0002_row_level_security")]

    operations = [InstallInvitationCleanup()]
