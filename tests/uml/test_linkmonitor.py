"""The link monitor on an older kernel, whose dumps go by hash buckets: what isn't only load.

Renames of links that are up are left out: kernels before 6.2 refuse them (EBUSY).
"""

from __future__ import annotations

from tests.kernel import test_linkmonitor as those

pytestmark = those.pytestmark

test_life_of_a_pod_link = those.test_life_of_a_pod_link
test_carrier_flaps_are_inferred = those.test_carrier_flaps_that_the_kernel_merged_are_inferred
test_release_by_a_bridge_is_no_removal = those.test_port_of_a_bridge_that_is_released_is_not_gone
test_two_links_swap_names = those.test_two_links_swap_names
test_overrun_while_stopped = those.test_overrun_while_stopped_then_the_view_is_right
test_messages_of_other_processes = those.test_messages_of_other_processes_are_not_the_kernels
test_hundreds_of_altnames = those.test_a_link_with_hundreds_of_altnames_hides_nobody
