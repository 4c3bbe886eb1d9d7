Feature: Order. Requests take effect one at a time, in one order, numbered by revision

  Scenario: What was answered before comes before
    Given the runtime
    When 4 clients take turns in storing, 25 rounds, each after the one before was answered
    Then their revisions follow each other without a gap

  Scenario: At once there is still an order
    Given the runtime
    When 8 threads each store 50 fragments as fast as they can
    Then no revision is given twice and each thread's own grow

  Scenario: Reads are part of it
    Given the runtime
    When one client writes a body 50 times, and after each time another one reads it
    Then every read gave what was written last
