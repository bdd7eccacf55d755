-- Return the policies that name one of these roles.
-- Locks: none. Role: superuser.
SELECT format('%%I of %%s', policyname, tablename) FROM pg_policies WHERE roles && %(roles)s::name[] ORDER BY 1
