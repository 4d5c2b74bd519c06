"""`provision doctor --image` on the two real images."""

import json

import pytest
from cell_images import Image

pytestmark = [pytest.mark.images, pytest.mark.network, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("which", ["old", "new"])
def test_the_doctor_looks_into_an_image(which: str, request: pytest.FixtureRequest) -> None:
    """It reads the image's own Python, and finds no fault in a cell that was proved to compile."""
    image: Image = request.getfixturevalue(f"{which}_image")
    workshop = image.workshop
    place = (f"--out={workshop.root}", f"--cell={workshop.case.name}")
    done = workshop.provision("doctor", f"--image={workshop.tag}", *place, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["judged"]["torch"].startswith("2.0.1" if which == "old" else "2.13.0")
    answers = {result["id"]: result for result in told["results"]}
    for check in ("packages.import", "packages.cell", "packages.numpy", "toolkit.cxx"):
        assert answers[check]["status"] == "pass", answers[check]
    assert answers["toolkit.headers"]["status"] == "pass"
    # What Docker gives a container by default, whatever the image.
    assert answers["cache.shm"]["severity"] == "warn"
