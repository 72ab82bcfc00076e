"""What should be there: `loading.load` makes one `model.Plan` of documents, or says all problems.

The parts are imported from their modules, so that who needs only the values pays for no parser.
"""

from __future__ import annotations
