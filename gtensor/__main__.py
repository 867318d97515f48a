"""`python -m gtensor`: the command."""

from gtensor.cli import main

raise SystemExit(main())
