-- Return the settings stored for a role, for this database or for a role in it: the first ones for any role, the second
-- ones for these roles and for all.
-- Locks: none. Role: any.
SELECT r.rolname, d.datname, split_part(setting, '=', 1), substr(setting, strpos(setting, '=') + 1)
  FROM pg_db_role_setting s
 CROSS JOIN unnest(s.setconfig) AS setting
  LEFT JOIN pg_roles r ON r.oid = s.setrole
  LEFT JOIN pg_database d ON d.oid = s.setdatabase
 WHERE coalesce(d.datname, current_database()) = current_database()
   AND (lower(split_part(setting, '=', 1)) = ANY (%(for_anyone)s::text[])
        OR (lower(split_part(setting, '=', 1)) = ANY (%(for_roles)s::text[])
            AND coalesce(r.rolname = ANY (%(roles)s::text[]), true)))
