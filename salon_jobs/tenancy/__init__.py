"""The store on the connection; no other code sets it."""

from salon_jobs.tenancy.active import expect_no_rows as expect_no_rows
from salon_jobs.tenancy.context import carry_store as carry_store
from salon_jobs.tenancy.context import reset_store as reset_store
from salon_jobs.tenancy.request import without_store as without_store
from salon_jobs.tenancy.resolvers import StoreResolver as StoreResolver
from salon_jobs.tenancy.resolvers import SubdomainResolver as SubdomainResolver
from salon_jobs.tenancy.resolvers import stores_of as stores_of
from salon_jobs.tenancy.stores import create_store as create_store
from salon_jobs.tenancy.violations import form_errors as form_errors
from salon_jobs.tenancy.violations import violation_of as violation_of
