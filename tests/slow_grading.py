import time
from tests.fake_engine import fake_grade
def grade(task):
    time.sleep(1.0)
    return fake_grade(task)
