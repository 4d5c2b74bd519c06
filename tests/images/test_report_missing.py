"""An image that brings no report is one clear failure."""

from collections.abc import Callable

import pytest
from support.engine import Engine

from provisioner.build.engine import connect, find_client
from provisioner.build.image import _report
from provisioner.errors import OutsideError

pytestmark = pytest.mark.images


def test_an_image_without_a_report_is_one_clear_failure(
    engine: Engine, base_image: Callable[[str], str]
) -> None:
    reached = connect(find_client(engine.environ), engine.environ)
    for image in (base_image("11"), "localhost/provision-test/none-of-this-name"):
        with pytest.raises(OutsideError) as caught:
            _report(reached, image)
        assert caught.value.code == "build.report"
        assert image in caught.value.message
