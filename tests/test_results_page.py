from benchmarks.results_page import PAGE, RESULTS, page


def test_the_page_says_what_the_records_say():
    assert list(RESULTS.glob("examples-*.json")), "no record is there"
    assert PAGE.read_text(encoding="utf-8") == page()
