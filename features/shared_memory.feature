Feature: Bodies are in shared memory, read where they lie by everybody and written by nobody

  The manager alone writes. Everybody else maps what it wrote, and the kernel keeps them from doing more than reading.

  Scenario: Another process reads a body where it lies
    Given the runtime
    And a fragment with a body of 1024 KiB
    When another process reads it
    Then that process found the body whole, in the very memory that we have mapped

  Scenario Outline: Nobody can write to a body
    Given the runtime
    And a fragment with a body of 1024 KiB in <tier>
    When another process tries to write to it
    Then the kernel has refused every attempt
    And everybody reads the body unchanged

    Examples:
      | tier |
      | hot  |
      | warm |
      | cold |

  Scenario Outline: What is held stays as it was
    Given the runtime
    And a fragment with a body of <size> KiB in <tier>
    And we hold it
    When another process <does something to it>
    Then what we hold is still the body that was stored

    Examples:
      | size | tier | does something to it |
      | 1    | hot  | deletes it           |
      | 4096 | hot  | deletes it           |
      | 4096 | hot  | replaces it          |
      | 1024 | hot  | demotes it           |
      | 1024 | warm | promotes it          |
      | 1024 | cold | deletes it           |

  Scenario: A view shows one revision
    Given the runtime
    And 100 small fragments
    And a view of them
    When another process replaces every other one and deletes the rest
    Then the view still shows all 100, each as it was
    And what has changed since is 50 replaced and 50 removed

  Scenario: A view is read without asking
    Given the runtime
    And 100 small fragments
    And a view of them
    Then reading every body in it makes no request

  Scenario: A large body arrives whole
    Given the runtime
    When another process stores a body of 65536 KiB
    Then we read it back, whole

  Scenario: What finds no room is refused, and nothing is lost
    Given the runtime with an arena of 8 MiB and room for 1 fragment in cold
    When bodies of 512 KiB are stored until one is refused
    Then the refusal is TierFull and says what to do
    And every body that was accepted can be read back, whole
