-- Duplicates are looked for by few: who does has it made at the start.
DROP INDEX job_files_open_by_target;
